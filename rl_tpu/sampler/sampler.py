"""The sampler that rollouts are drawn from."""

from collections.abc import Sequence
import dataclasses
from typing import Any, Protocol

import numpy as np

from rl_tpu.sampler import contract
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sampler import scheduler as scheduler_lib
from rl_tpu.sampler import types
from rl_tpu.sampler import weights as weights_lib

SYNC_MODES = ('drain', 'inflight', 'restart')


class Sampler(Protocol):
  """Continues prompts under published weights; ids in, ids out."""

  def submit(self, request: types.Request) -> None:
    """Queues a request."""

  def step(self) -> list[types.Completion]:
    """Works for a bounded time; returns what has ended."""

  def abort(self, request_id: str) -> bool:
    """Ends a request; its completion says `abort`."""

  def update_weights(self, version: int, params: Any, mode: str) -> None:
    """Serves other weights from now on."""

  @property
  def busy(self) -> bool:
    """True while a completion is owed."""


@dataclasses.dataclass
class Stats:
  """Counts since the last reset; times are the caller's.

  Attributes:
    requests: submitted.
    calls: of `generate`.
    generated_tokens: sampled, slot-steps that a request used.
    dead_slot_steps: slot-steps that no request used.
    prefill_calls: of `refill`.
    prefill_tokens: prompt tokens read.
    prefill_padding: padding tokens read with them.
    reused_tokens: prompt tokens that were in the slot's cache already.
    queued_rounds: requests left in the queue, summed over rounds.
    resizes: changes of the cache's length.
    aborts: completions that say abort, and so on for the other reasons.
    stops: see aborts.
    lengths: see aborts.
    contexts: see aborts.
  """

  requests: int = 0
  calls: int = 0
  generated_tokens: int = 0
  dead_slot_steps: int = 0
  prefill_calls: int = 0
  prefill_tokens: int = 0
  prefill_padding: int = 0
  reused_tokens: int = 0
  queued_rounds: int = 0
  resizes: int = 0
  aborts: int = 0
  stops: int = 0
  lengths: int = 0
  contexts: int = 0


class JetStreamSampler:
  """Own scheduling over a JetStream engine, one thread, no clock.

  An exception of the engine goes to the caller of `step`.
  """

  def __init__(
      self,
      engine: engine_lib.PolicyEngine,
      store: weights_lib.PolicyStore | None = None,
      *,
      deterministic: bool = False,
  ):
    """Starts without weights.

    Args:
      engine: decodes.
      store: of weights that are shared with others; None makes one.
      deterministic: every bit of a completion follows from its request and the
        weights. Otherwise a prompt goes on from what its slot still holds, and
        the cache is as long as the longest live request needs: sums are added
        up in another order then, which depends on the requests of others.
    """
    self._engine = engine
    self._deterministic = deterministic
    self._store = store or weights_lib.PolicyStore(
        decoder_config=engine.decoder_config,
        weight_shardings=engine.weight_shardings,
        dtype=engine.dtype,
    )
    self._stats = Stats()
    self._empty()

  def _empty(self) -> None:
    engine = self._engine
    self._scheduler = scheduler_lib.SlotScheduler(
        slots=engine.max_concurrent_decodes,
        shards=engine.shards,
        tokens_per_call=engine.tokens_per_call,
    )
    self._served: Any = None
    self._state: engine_lib.DecodeState | None = None
    self._capacity = 0
    self._ended: list[types.Completion] = []

  @property
  def version(self) -> int | None:
    """Version of the weights served; None before the first."""
    return self._store.version

  @property
  def weights(self) -> Any:
    """The weights served, as `models.decode` reads them."""
    return self._store.weights

  @property
  def busy(self) -> bool:
    """True while a completion is owed."""
    scheduler = self._scheduler
    return bool(scheduler.num_live or scheduler.num_queued or self._ended)

  @property
  def max_prompt_length(self) -> int:
    """Tokens of the longest prompt that `submit` takes."""
    engine = self._engine
    return min(engine.max_prefill_length, engine.max_length - 1)

  def submit(self, request: types.Request) -> None:
    """Queues a request.

    Raises:
      ValueError: a prompt that is empty, too long or has an id that the model
        lacks; a stop id that it lacks; an id that is in use.
    """
    config = self._engine.decoder_config
    usable = config.usable_vocab or config.vocab_size
    prompt = np.ascontiguousarray(request.prompt, np.int32)
    name = f'request {request.request_id!r}'
    if prompt.ndim != 1 or not 0 < len(prompt) <= self.max_prompt_length:
      raise ValueError(
          f'{name}: the prompt has shape {prompt.shape}; 1 to'
          f' {self.max_prompt_length} tokens fit (sampler.prefill_buckets and'
          ' max_length).'
      )
    ids = [int(prompt.min()), int(prompt.max()), *request.params.stop_ids]
    if min(ids) < 0 or max(ids) >= usable:
      raise ValueError(
          f'{name}: prompt and stop ids must lie in [0, {usable}), got'
          f' {min(ids)} to {max(ids)}.'
      )
    if self._scheduler.is_active(request.request_id) or any(
        done.request_id == request.request_id for done in self._ended
    ):
      raise ValueError(f'{name}: the id is in use.')
    self._scheduler.submit(dataclasses.replace(request, prompt=prompt))
    self._stats.requests += 1

  def step(self) -> list[types.Completion]:
    """One round: fills free slots, then one `generate`.

    Returns:
      The requests that ended, those of aborts and drains first.
    """
    self._fill()
    self._generate()
    done, self._ended = self._ended, []
    return done

  def abort(self, request_id: str) -> bool:
    """Ends a request; the next `step` returns what was sampled for it.

    Returns:
      False if the request is not active.
    """
    done, slot = self._scheduler.abort(request_id)
    if done is None:
      return False
    if slot is not None:
      self._state = self._engine.release(self._state, [slot])
    self._end([done])
    return True

  def update_weights(
      self, version: int, params: Any, mode: str = 'drain'
  ) -> None:
    """Copies parameters and serves them; `params` may be donated after it.

    Args:
      version: of the policy.
      params: the trainer's.
      mode: what becomes of requests in slots. drain: they end under the old
        weights first, one version a completion. inflight: they go on with
        the cache they have. restart: their tokens are kept and read again by
        the new weights. The queue waits in any case.

    Raises:
      ValueError: unknown mode, or parameters that do not fit; the old version
        goes on being served (K33).
    """
    if mode not in SYNC_MODES:
      raise ValueError(
          f'sampler.sync = {mode!r}: use one of {", ".join(SYNC_MODES)}.'
      )
    if mode == 'drain':
      while self._scheduler.num_live:
        self._generate()
    self._store.publish(version, params)
    if mode == 'restart' and self._scheduler.num_live:
      slots = self._scheduler.requeue()
      self._state = self._engine.release(self._state, slots)

  def reset(self) -> None:
    """Drops requests, caches and weights; the engine's programs stay.

    Weights have to be published again: those served are not to be relied on.
    """
    self._empty()
    self._store.drop()

  def digest(self) -> bytes:
    """Of everything that the next decisions are taken from."""
    return self._scheduler.digest()

  def stats(self) -> dict[str, int]:
    """Counts since the last reset, see `Stats`."""
    return dataclasses.asdict(self._stats)

  def reset_stats(self) -> None:
    """Starts counting anew."""
    self._stats = Stats()

  def _fill(self) -> None:
    engine, stats, weights = self._engine, self._stats, self._store.weights
    if weights is not self._served or self._deterministic:
      self._scheduler.forget_caches()  # K32: they are of other weights.
      self._served = weights
    groups: dict[tuple[bool, int], list[Any]] = {}
    longest = 0
    for insert in self._scheduler.fill():
      bucket, insert = engine.bucket_for(insert)
      groups.setdefault((insert.start > 0, bucket), []).append(insert)
      longest = max(longest, len(insert.prompt), bucket)
    stats.queued_rounds += self._scheduler.num_queued
    if groups:
      self._fit(longest)
    for (_, bucket), group in sorted(groups.items()):
      self._state, table = engine.refill(weights, self._state, group, bucket)
      stats.prefill_calls += 1
      stats.prefill_tokens += table.tokens
      stats.prefill_padding += table.padding
      stats.reused_tokens += table.reused

  def _generate(self) -> None:
    if not self._scheduler.num_live:
      return
    self._fit(0)
    self._state, result = self._engine.generate(
        self._store.weights, self._state
    )
    columns = contract.unpack(
        np.asarray(result.data), self._engine.tokens_per_call
    )
    valid = int(np.sum(columns.valid))
    self._stats.calls += 1
    self._stats.generated_tokens += valid
    self._stats.dead_slot_steps += columns.valid.size - valid
    self._end(self._scheduler.record(columns, self._store.version))

  def _fit(self, at_least: int) -> None:
    """Gives the cache the length that the next call needs."""
    length = max(at_least, self._scheduler.needed_length())
    if self._deterministic:
      length = self._engine.max_length
    capacity = self._engine.capacity_for(length)
    if self._state is None:
      self._state = self._engine.init_decode_state(capacity=capacity)
    elif capacity > self._capacity or 2 * capacity <= self._capacity:
      self._state = self._engine.resize(self._state, capacity)
      # A free slot may write at the end of what it holds.
      self._scheduler.forget_caches(from_length=capacity)
      self._stats.resizes += 1
    else:
      return
    self._capacity = capacity

  def _end(self, done: Sequence[types.Completion]) -> None:
    for completion in done:
      name = f'{completion.finish_reason}s'
      setattr(self._stats, name, getattr(self._stats, name) + 1)
    self._ended += done
