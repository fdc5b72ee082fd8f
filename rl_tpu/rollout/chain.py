"""Is a rollout's record whole? Shape of the record, and its chain (R6, R9)."""

from collections.abc import Mapping, Sequence

import numpy as np

from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.rewards import components
from rl_tpu.types import termination as term

_CUTS = frozenset(cut.value for cut in term.Cut)
_CAUSES = frozenset(cause.value for cause in term.CutCause)
_ACTIONS = (records.ACTION, records.SUMMARY)
_COLUMNS = (
    'role',
    'turn_id',
    'token_type',
    'reward',
    'behaviour_logprob',
    'behaviour_version',
)
# Weighted sums of the record against ours: they differ by rounding only.
_REWARD_RTOL = 1e-6


def in_time_order(
    rollout: records.Rollout,
) -> tuple[records.Segment, ...]:
  """The stored segments, by segment_index (V1)."""
  return tuple(sorted(rollout.segments, key=lambda s: s.segment_index))


def malformed_problem(
    rollout: records.Rollout, *, weights: Mapping[str, float] | None
) -> str | None:
  """What is wrong with the fields themselves; None if nothing is.

  Args:
    rollout: the record.
    weights: reward weights by component name, for R9; None leaves it out.
  """
  if rollout.schema_version != records.SCHEMA_VERSION:
    return f'schema_version {rollout.schema_version} is not known'
  aborted = rollout.termination == term.Termination.RUNTIME_ABORT
  if aborted != (rollout.abort_cause is not None):
    return 'abort_cause belongs to runtime_abort, and only to it'
  for segment in rollout.segments:
    problem = _segment_problem(segment, rollout.rollout_id)
    if problem is not None:
      return f'segment {segment.segment_index}: {problem}'
  segments = in_time_order(rollout)
  if not segments:
    return None
  return (
      _position_problem(segments)
      or _turn_problem(segments)
      or _copied_reward_problem(segments)
      or _terminal_problem(rollout)
      or _reward_problem(rollout, segments, weights)
  )


def _segment_problem(segment: records.Segment, rollout_id: str) -> str | None:
  if segment.rollout_id != rollout_id:
    return f'belongs to rollout {segment.rollout_id!r}'
  length = len(segment.token)
  if not length:
    return 'has no tokens'
  for name in _COLUMNS:
    if getattr(segment, name).shape != (length,):
      return f'{name} has not one entry per token'
  if segment.role[0] in _ACTIONS:
    return 'starts with an action: there is no state before it (V0)'
  if segment.end_kind == term.Cut.COMPACTION.value:
    if segment.cut_cause not in _CAUSES:
      return f'cut_cause {segment.cut_cause!r} is not known'
  elif segment.cut_cause is not None:
    return 'cut_cause belongs to compaction_cut, and only to it'
  return None


def _position_problem(segments: Sequence[records.Segment]) -> str | None:
  role = np.concatenate([s.role for s in segments])
  action = (role == records.ACTION) | (role == records.SUMMARY)
  known = action.copy()
  for name in records.ROLES:
    known |= role == name
  if not known.all():
    return 'a position has an unknown role'
  turn_id = np.concatenate([s.turn_id for s in segments])
  if ((turn_id >= 0) != action).any():
    return 'turn_id must be set on the actions and only there'
  version = np.concatenate([s.behaviour_version for s in segments])
  if (version[action] < 0).any():
    return 'an action has no behaviour_version'
  return None


def _turn_problem(segments: Sequence[records.Segment]) -> str | None:
  turn_id = np.concatenate([s.turn_id for s in segments])
  turn_id = turn_id[turn_id >= 0]
  starts = turn_id[np.flatnonzero(np.diff(turn_id, prepend=-1))]
  if np.unique(starts).size != starts.size:
    return 'a turn_id occurs again after another turn'
  return None


def _copied_reward_problem(segments: Sequence[records.Segment]) -> str | None:
  """R9: a position that a resumed segment repeats carries no reward again.

  After a resume_cut the context is the same context continued, so what it
  shares with its predecessor from the start is copied. What a compaction
  copied is not marked in a record: there the writer is trusted.
  """
  for earlier, later in zip(segments, segments[1:]):
    consecutive = earlier.segment_index + 1 == later.segment_index
    if not consecutive or earlier.end_kind != term.Cut.RESUME.value:
      continue
    length = min(len(earlier), len(later))
    same = earlier.token[:length] == later.token[:length]
    context = later.role[:length] == records.CONTEXT
    copied = np.logical_and.accumulate(same & context)
    if (later.reward[:length][copied] != 0).any():
      return (
          f'segment {later.segment_index} rewards a position that it copies'
          ' from the one before (R9)'
      )
  return None


def _terminal_problem(rollout: records.Rollout) -> str | None:
  """R9: the component `terminal` is terminal_reward, and nothing beside it."""
  places = rollout.reward_components.get(components.TERMINAL, ())
  if not places:
    return None
  values = [float(value) for _, _, value in places]
  if len(values) == 1 and rollout.terminal_reward is not None:
    # Values that are not finite are admission's business (K35).
    both = np.asarray([values[0], rollout.terminal_reward], np.float64)
    if not np.isfinite(both).all() or both[0] == both[1]:
      return None
  return (
      f'the component terminal says {values}, terminal_reward'
      f' {rollout.terminal_reward}: a reward has one home (R9)'
  )


def _reward_problem(
    rollout: records.Rollout,
    segments: Sequence[records.Segment],
    weights: Mapping[str, float] | None,
) -> str | None:
  """R9: the reward of a position is the weighted sum of its components."""
  if weights is None:
    return None
  lengths = {s.segment_index: len(s) for s in segments}
  places = rollout.reward_components
  if len(lengths) < rollout.num_segments:
    # A dropped prefix takes the places of its rewards with it.
    places = {
        name: [place for place in values if place[0] in lengths]
        for name, values in places.items()
    }
  try:
    expected = components.position_rewards(places, weights, lengths)
  except ValueError as error:
    return str(error)
  expected = np.concatenate([expected[s.segment_index] for s in segments])
  reward = np.concatenate([s.reward for s in segments])
  # Values that are not finite are admission's business (K35).
  both = np.isfinite(reward) & np.isfinite(expected)
  off = np.abs(np.where(both, reward - np.where(both, expected, 0.0), 0.0))
  if (off > _REWARD_RTOL * np.maximum(1.0, np.abs(expected))).any():
    return 'reward is not the weighted sum of reward_components (R9)'
  return None


def chain_problem(
    rollout: records.Rollout, *, allow_dropped_prefix: bool
) -> str | None:
  """What breaks the chain of segments (R6, T10); None if nothing does."""
  segments = in_time_order(rollout)
  if not segments:
    return 'no segment is stored' if rollout.num_segments else None
  first = segments[0].segment_index
  indices = [s.segment_index for s in segments]
  if indices != list(range(first, rollout.num_segments)):
    return f'segments {indices} of {rollout.num_segments} are stored'
  if first and not allow_dropped_prefix:
    return f'the first {first} segments are missing'
  for segment in segments[:-1]:
    if segment.end_kind not in _CUTS:
      return f'segment {segment.segment_index} ends by {segment.end_kind}'
  if segments[-1].end_kind != rollout.termination.value:
    return f'the last segment ends by {segments[-1].end_kind}'
  return (
      _offset_problem(segments)
      or _reference_problem(segments)
      or hashes.problem(rollout)
  )


def _offset_problem(segments: Sequence[records.Segment]) -> str | None:
  turns = [set(s.turn_id[s.is_action].tolist()) for s in segments]
  last_of = {turn: k for k, here in enumerate(turns) for turn in here}
  head = segments[0]
  offsets = (head.global_token_offset, head.action_offset, head.turn_offset)
  if not head.segment_index and any(offsets):
    return 'the first segment has offsets'
  if min(offsets) < 0 or offsets[0] < max(offsets[1], head.segment_index):
    return 'the offsets of the first kept segment cannot be'
  for k, segment in enumerate(segments):
    stored = (
        segment.global_token_offset,
        segment.action_offset,
        segment.turn_offset,
    )
    if stored != offsets:
      return (
          f'segment {segment.segment_index} has offsets {stored}, expected'
          f' {offsets}'
      )
    # A turn ends in the last segment that has it.
    ended = sum(1 for turn in turns[k] if last_of[turn] == k)
    offsets = (
        offsets[0] + len(segment),
        offsets[1] + int(segment.is_action.sum()),
        offsets[2] + ended,
    )
  return None


def _reference_problem(segments: Sequence[records.Segment]) -> str | None:
  for earlier, later in zip(segments, segments[1:]):
    if earlier.next_state_ref != later.prev_state_ref:
      return (
          f'segment {later.segment_index} continues from'
          f' {later.prev_state_ref!r}, but its predecessor went on to'
          f' {earlier.next_state_ref!r}'
      )
  if segments[-1].next_state_ref is not None:
    return 'the last segment names a next state'
  if not segments[0].segment_index and segments[0].prev_state_ref is not None:
    return 'the first segment continues from a state'
  for segment in segments[:-1]:
    if segment.next_state_ref is None:
      return f'segment {segment.segment_index} names no next state'
  return None
