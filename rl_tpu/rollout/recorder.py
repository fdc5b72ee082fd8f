"""Writes a rollout down as it happens: segments, positions, joins (R1-R3)."""

import dataclasses

import numpy as np

from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term
from rl_tpu.types import token_types


token_hash = hashes.token_hash


class _Draft:
  """A segment being written."""

  def __init__(self, summary_hash: str | None, summary_author: str | None):
    self.parts: list[dict[str, np.ndarray]] = []
    self.length = 0
    self.context_length = 0
    self.summary_hash = summary_hash
    self.summary_author = summary_author
    self.sampling: records.Sampling | None = None
    self.supports: dict[int, support_lib.Support] = {}
    self.last_action: int | None = None

  def add(
      self,
      ids: np.ndarray,
      role: str,
      *,
      turn_id: int = -1,
      logprob: np.ndarray | None = None,
      version: np.ndarray | None = None,
      token_type: int | np.ndarray = 0,
  ) -> None:
    count = len(ids)
    self.parts.append({
        'token': np.asarray(ids, np.int32),
        'role': np.full(count, role, 'U1'),
        'turn_id': np.full(count, turn_id, np.int32),
        'token_type': np.full(count, token_type, np.int32),
        'behaviour_logprob': (
            np.zeros(count, np.float32)
            if logprob is None
            else np.asarray(logprob, np.float32)
        ),
        'behaviour_version': (
            np.full(count, -1, np.int32)
            if version is None
            else np.asarray(version, np.int32)
        ),
    })
    self.length += count

  def column(self, name: str) -> np.ndarray:
    return np.concatenate([part[name] for part in self.parts])

  def support(self) -> support_lib.Support | None:
    """Of the whole segment; None where no part was truncated."""
    if not self.supports:
      return None
    return support_lib.join([
        self.supports.get(index, support_lib.whole(len(part['token'])))
        for index, part in enumerate(self.parts)
    ])


class Recorder:
  """Collects the segments of one rollout.

  Call order: `open`, then any of `observe`, `remark`, `sampled`, `reward`,
  and `cut` followed by `open` for each further window, then `close`.
  """

  def __init__(
      self, rollout_id: str, lineage: str, reward_weights: dict[str, float]
  ):
    """Args: the id, the environment's snapshot lineage, weights by name."""
    self._rollout_id = rollout_id
    self._lineage = lineage
    self._weights = reward_weights
    self._segments: list[records.Segment] = []
    self._draft: _Draft | None = None
    self._rewards: list[tuple[int, float]] = []
    self.components: dict[str, list[tuple[int, int, float]]] = {}

  @property
  def segment_length(self) -> int:
    """Tokens of the open segment."""
    return self._draft.length if self._draft else 0

  @property
  def num_segments(self) -> int:
    """Segments closed so far."""
    return len(self._segments)

  def tokens(self) -> np.ndarray:
    """[L] ids of the open segment: the next prompt, as it will be fed."""
    return self._draft.column('token')

  def open(
      self,
      context: np.ndarray,
      *,
      summary: np.ndarray | None = None,
      summary_author: str | None = None,
  ) -> None:
    """Starts a window with the context ids that are really fed.

    Args:
      context: the ids.
      summary: ids of the text placed in it. Of the policy's own, those that
        were sampled count: they can be found in the record (R6).
      summary_author: who wrote it.
    """
    if summary_author == 'policy':
      summary = hashes.summary_ids(self._segments[-1])
    summary_hash = None if summary is None else token_hash(summary)
    self._draft = _Draft(summary_hash, summary_author)
    self._draft.add(context, records.CONTEXT)
    self._draft.context_length = len(context)

  def observe(self, ids: np.ndarray) -> None:
    """Appends environment output."""
    self._draft.add(ids, records.OBSERVATION)

  def remark(self, ids: np.ndarray) -> None:
    """Appends text of the runtime."""
    self._draft.add(ids, records.RUNTIME)

  def sampled(
      self,
      ids: np.ndarray,
      logprob: np.ndarray,
      version: np.ndarray,
      *,
      turn_id: int,
      sampling: records.Sampling,
      support: support_lib.Support | None = None,
      token_type: np.ndarray | None = None,
      is_summary: bool = False,
  ) -> None:
    """Appends a reply exactly as sampled, stop token included.

    Args:
      ids: the reply.
      logprob: what each token was drawn with.
      version: of the policy that drew it.
      turn_id: of the turn.
      sampling: how it was drawn.
      support: what could have been drawn; None for the whole vocabulary.
      token_type: [L] as a parser found them (L19); None is text. Summaries
        and stop tokens have types of their own.
      is_summary: the reply is a summary.
    """
    role = records.SUMMARY if is_summary else records.ACTION
    if is_summary:
      token_type = token_types.SUMMARY
    elif token_type is None:
      token_type = token_types.TEXT
    draft = self._draft
    draft.add(
        ids,
        role,
        turn_id=turn_id,
        logprob=logprob,
        version=version,
        token_type=token_type,
    )
    # A stop token that was sampled is an action of type stop (R3).
    if len(ids) and int(ids[-1]) in sampling.stop_ids:
      draft.parts[-1]['token_type'][-1] = token_types.STOP
    draft.sampling = draft.sampling or sampling
    if support is not None and np.any(support.count != support_lib.WHOLE):
      draft.supports[len(draft.parts) - 1] = support
    if len(ids):
      draft.last_action = draft.length - 1

  def reward(self, name: str, value: float) -> None:
    """Puts a raw component on the action that has just earned it (G7)."""
    position = self._draft.last_action
    if position is None:
      raise ValueError(f'reward {name!r} came before any action of the window.')
    place = (len(self._segments), position, float(value))
    self.components.setdefault(name, []).append(place)
    weight = float(self._weights.get(name, 0.0))
    if weight:
      self._rewards.append((position, weight * float(value)))

  def cut(self, kind: term.Cut, cause: term.CutCause | None = None) -> None:
    """Closes the window at a boundary that is no end.

    Args:
      kind: of the boundary.
      cause: of a compaction; None at a resume.
    """
    self._finish(
        kind.value,
        self._state_ref(len(self._segments) + 1),
        cause.value if cause is not None else None,
    )

  def close(self, termination: term.Termination) -> tuple:
    """Closes the last window; returns the segments in time order."""
    if self._draft is not None:
      self._finish(termination.value)
    return tuple(self._segments)

  def _state_ref(self, index: int) -> str:
    return hashes.state_ref(self._lineage, self._rollout_id, index)

  def _finish(
      self,
      end_kind: str,
      next_state_ref: str | None = None,
      cut_cause: str | None = None,
  ) -> None:
    draft = self._draft
    index = len(self._segments)
    token = draft.column('token')
    reward = np.zeros(len(token), np.float64)
    for position, value in self._rewards:
      reward[position] += value
    before = self._segments
    # Turns never span a cut here, so every turn of an earlier segment ended
    # there.
    turns = {int(t) for s in before for t in s.turn_id[s.turn_id >= 0]}
    self._segments.append(
        records.Segment(
            rollout_id=self._rollout_id,
            segment_index=index,
            global_token_offset=sum(len(s) for s in before),
            action_offset=sum(int(s.is_action.sum()) for s in before),
            turn_offset=len(turns),
            end_kind=end_kind,
            prev_state_ref=self._state_ref(index) if index else None,
            next_state_ref=next_state_ref,
            summary_hash=draft.summary_hash,
            summary_author=draft.summary_author,
            context_length=draft.context_length,
            context_hash=token_hash(token[: draft.context_length]),
            token=token,
            role=draft.column('role'),
            turn_id=draft.column('turn_id'),
            token_type=draft.column('token_type'),
            reward=reward,
            behaviour_logprob=draft.column('behaviour_logprob'),
            behaviour_version=draft.column('behaviour_version'),
            sampling=draft.sampling,
            support=draft.support(),
            cut_cause=cut_cause,
        )
    )
    self._draft = None
    self._rewards = []


def with_times(
    rollout: records.Rollout, *, t_enqueued: float, t_consumed: float
) -> records.Rollout:
  """The record with the times that the queue knows (O1)."""
  return dataclasses.replace(
      rollout, t_enqueued=t_enqueued, t_consumed=t_consumed
  )
