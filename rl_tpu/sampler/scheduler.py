"""Which request sits in which slot: a state machine without clock or thread.

Every decision follows from the order of submission and from what the engine
returned, so that several processes with the same inputs decide alike.
"""

import collections
from collections.abc import Sequence
import dataclasses
import hashlib

import numpy as np

from rl_tpu.sampler import contract
from rl_tpu.sampler import residents
from rl_tpu.sampler import state as state_lib
from rl_tpu.sampler import types
from rl_tpu.types import support as support_lib

_NO_TOKENS = (
    np.zeros(0, np.int32),
    np.zeros(0, np.float32),
    np.zeros(0, np.int32),
    *support_lib.whole(0),
)


@dataclasses.dataclass(eq=False)
class _Entry:
  """A request and what was sampled for it before its present slot.

  Attributes:
    request: as submitted.
    kept: token, logprob, version and support arrays kept over a restart.
    first_call: the first `generate` call of its present slot.
    one_version: all of its slot's cache is of one version of the weights.
  """

  request: types.Request
  kept: tuple[np.ndarray, ...] = _NO_TOKENS
  first_call: int = 0
  one_version: bool = True


@dataclasses.dataclass(eq=False)
class _Call:
  """What one `generate` call returned, and under which version."""

  columns: contract.Columns
  num_valid: np.ndarray
  version: int


class SlotScheduler:
  """Queue, slots, and the tokens of the requests in them."""

  def __init__(self, *, slots: int, shards: int, tokens_per_call: int):
    """Starts empty.

    Args:
      slots: of the engine.
      shards: equal parts that the slots are divided into.
      tokens_per_call: tokens a slot may grow by between two decisions.
    """
    self._shards = shards
    self._tokens_per_call = tokens_per_call
    self._queue: collections.deque[_Entry] = collections.deque()
    self._slots: list[_Entry | None] = [None] * slots
    self._residents = residents.Residents(slots)
    self._position = np.full(slots, -1, np.int64)  # -1: the slot is free.
    self._active: dict[str, _Entry] = {}
    # Calls that a slot in use may still read, the oldest being `_first_call`.
    self._calls: collections.deque[_Call] = collections.deque()
    self._first_call = 0

  @property
  def num_live(self) -> int:
    """Requests in slots."""
    return int(np.sum(self._position >= 0))

  @property
  def num_queued(self) -> int:
    """Requests that wait for a slot."""
    return len(self._queue)

  def is_active(self, request_id: str) -> bool:
    """True for requests in the queue or in a slot."""
    return request_id in self._active

  def needed_length(self) -> int:
    """Cache positions that the next call may write."""
    return int(self._position.max()) + self._tokens_per_call

  def digest(self) -> bytes:
    """Of queue, slots and the last tokens; alike where all of it is."""
    name = lambda entry: entry.request.request_id if entry else None
    found = hashlib.blake2b(digest_size=16)
    places = [name(entry) for entry in (*self._queue, *self._slots)]
    found.update(repr((places, self._position.tolist())).encode())
    if self._calls:
      columns = self._calls[-1].columns
      found.update(np.ascontiguousarray(columns.token).tobytes())
      found.update(np.ascontiguousarray(columns.valid).tobytes())
    return found.digest()

  def submit(self, request: types.Request) -> None:
    """Puts a request at the end of the queue."""
    entry = _Entry(request)
    self._active[request.request_id] = entry
    self._queue.append(entry)

  def fill(self) -> list[state_lib.Insert]:
    """Gives free slots to the queue, oldest request first.

    A request that continues what a free slot holds goes there; any other to
    the shard with most free slots, where least is lost.

    Returns:
      One entry a request, in the order of the queue.
    """
    free = [int(slot) for slot in np.nonzero(self._position < 0)[0]]
    count = min(len(free), len(self._queue))
    entries = [self._queue.popleft() for _ in range(count)]
    prompts = [
        np.concatenate([entry.request.prompt, entry.kept[0]])
        for entry in entries
    ]
    found = [self._residents.take(prompt) for prompt in prompts]
    taken = {slot for slot, _ in found}
    pool = _Pool(
        [slot for slot in free if slot not in taken],
        local=len(self._slots) // self._shards,
        cost=self._residents.last_use,
    )
    inserts = []
    for entry, prompt, (slot, start) in zip(entries, prompts, found):
      if slot < 0:
        slot = pool.take()
        self._residents.forget(slot)
      inserts.append(self._enter(slot, entry, prompt, start))
    return inserts

  def _enter(
      self, slot: int, entry: _Entry, prompt: np.ndarray, start: int
  ) -> state_lib.Insert:
    position = len(prompt) - 1
    self._slots[slot] = entry
    self._position[slot] = position
    entry.first_call = self._first_call + len(self._calls)
    entry.one_version = True
    control = state_lib.row(
        entry.request.params,
        token=int(prompt[-1]),
        position=position,
        generated=len(entry.kept[0]),
    )
    return state_lib.Insert(slot, prompt, start, control)

  def forget_caches(self, *, from_length: int = 0) -> None:
    """No slot's cache will be continued, or none as long as this.

    Args:
      from_length: with 0 the caches of live requests are meant as well: the
        weights have changed.
    """
    self._residents.forget_all(from_length)
    if not from_length:
      for entry in filter(None, self._slots):
        entry.one_version = False

  def record(
      self, columns: contract.Columns, version: int
  ) -> list[types.Completion]:
    """Takes in one `generate` call.

    Args:
      columns: what it returned.
      version: of the weights it was given.

    Returns:
      The requests that ended, by slot.
    """
    num_valid = np.sum(columns.valid, axis=1)
    self._calls.append(_Call(columns, num_valid, version))
    used = self._position >= 0
    self._position[used] += num_valid[used]
    done = [
        self._leave(int(slot), types.FINISH_REASONS[columns.finish[slot]])
        for slot in np.nonzero(used & (columns.finish != 0))[0]
    ]
    self._forget_calls()
    return done

  def _leave(self, slot: int, finish_reason: str) -> types.Completion:
    entry = self._slots[slot]
    del self._active[entry.request.request_id]
    sampled = self._sampled(slot)
    self._slots[slot] = None
    self._position[slot] = -1
    if entry.one_version:
      # The last token was sampled but not fed.
      whole = np.concatenate([entry.request.prompt, sampled[0]])
      self._residents.put(slot, whole[:-1])
    return _completion(entry, sampled, finish_reason)

  def _sampled(self, slot: int) -> tuple[np.ndarray, ...]:
    """Token, logprob, version and support arrays of a slot's request."""
    entry = self._slots[slot]
    parts = [entry.kept]
    for index in range(entry.first_call - self._first_call, len(self._calls)):
      call = self._calls[index]
      count = call.num_valid[slot]
      parts.append((
          call.columns.token[slot, :count],
          call.columns.logprob[slot, :count],
          np.full(count, call.version, np.int32),
          *support_lib.from_columns(
              call.columns.support_count[slot, :count],
              call.columns.support[slot, :count],
          ),
      ))
    return tuple(np.concatenate(arrays) for arrays in zip(*parts))

  def _forget_calls(self) -> None:
    now = self._first_call + len(self._calls)
    oldest = min((e.first_call for e in self._slots if e), default=now)
    while self._first_call < oldest:
      self._calls.popleft()
      self._first_call += 1

  def abort(
      self, request_id: str
  ) -> tuple[types.Completion | None, int | None]:
    """Takes a request out.

    Returns:
      What was sampled for it, and the slot that it leaves; None and None if
      it is not active.
    """
    entry = self._active.get(request_id)
    if entry is None:
      return None, None
    if entry in self._slots:
      slot = self._slots.index(entry)
      return self._leave(slot, types.ABORT), slot
    self._queue.remove(entry)
    del self._active[request_id]
    return _completion(entry, entry.kept, types.ABORT), None

  def requeue(self) -> list[int]:
    """Puts live requests back to the front of the queue, tokens kept.

    Returns:
      The slots they leave.
    """
    slots = [int(slot) for slot in np.nonzero(self._position >= 0)[0]]
    entries = []
    for slot in slots:
      entry = self._slots[slot]
      entry.kept = self._sampled(slot)
      entries.append(entry)
      self._slots[slot] = None
      self._position[slot] = -1
    self._queue.extendleft(reversed(entries))
    self._forget_calls()
    return slots


class _Pool:
  """Free slots that hold nothing of use."""

  def __init__(self, free: list[int], *, local: int, cost: Sequence[int]):
    """Takes the slots, the slots of a shard, and when each was last used."""
    self._by_shard: dict[int, list[int]] = {}
    for slot in sorted(free, key=lambda slot: (cost[slot], slot)):
      self._by_shard.setdefault(slot // local, []).append(slot)

  def take(self) -> int:
    """From the shard with most free slots, the first one."""
    shards = sorted(self._by_shard)
    shard = max(shards, key=lambda shard: len(self._by_shard[shard]))
    return self._by_shard[shard].pop(0)


def _completion(
    entry: _Entry, sampled: tuple[np.ndarray, ...], finish_reason: str
) -> types.Completion:
  token, logprob, version, *support = sampled
  return types.Completion(
      request_id=entry.request.request_id,
      prompt=entry.request.prompt,
      token=token,
      logprob=logprob,
      version=version,
      finish_reason=finish_reason,
      params=entry.request.params,
      support=support_lib.Support(*support),
  )
