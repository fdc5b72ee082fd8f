"""Is a rollout's record whole? Shape of the record, and its chain (R6, R9)."""

from collections.abc import Mapping, Sequence

import numpy as np

from rl_tpu.records import records
from rl_tpu.rewards import components
from rl_tpu.types import termination as term

_CUTS = frozenset(cut.value for cut in term.Cut)
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
    rollout: records.Rollout, *, weights: Mapping[str, float]
) -> str | None:
  """What is wrong with the fields themselves; None if nothing is.

  Args:
    rollout: the record.
    weights: reward weights by component name, for R9.
  """
  if rollout.schema_version != records.SCHEMA_VERSION:
    return f'schema_version {rollout.schema_version} is not known'
  aborted = rollout.termination == term.Termination.RUNTIME_ABORT
  if aborted != (rollout.abort_cause is not None):
    return 'abort_cause belongs to runtime_abort, and only to it'
  for segment in rollout.segments:
    problem = _segment_problem(segment)
    if problem is None and segment.rollout_id != rollout.rollout_id:
      problem = f'belongs to rollout {segment.rollout_id!r}'
    if problem is not None:
      return f'segment {segment.segment_index}: {problem}'
  return _turn_problem(rollout) or _reward_problem(rollout, weights)


def _segment_problem(segment: records.Segment) -> str | None:
  length = len(segment.token)
  if not length:
    return 'has no tokens'
  for name in _COLUMNS:
    if np.shape(getattr(segment, name)) != (length,):
      return f'{name} has not one entry per token'
  if not np.isin(segment.role, records.ROLES).all():
    return 'has an unknown role'
  action = segment.is_action
  if action[0]:
    return 'starts with an action: there is no state before it (V0)'
  if ((segment.turn_id >= 0) != action).any():
    return 'turn_id must be set on the actions and only there'
  if (segment.behaviour_version[action] < 0).any():
    return 'an action has no behaviour_version'
  first = int(np.argmax(action)) if action.any() else length
  if segment.context_length > first:
    return 'context_length reaches past the first action'
  return None


def _turn_problem(rollout: records.Rollout) -> str | None:
  turns = [s.turn_id[s.is_action] for s in in_time_order(rollout)]
  turn = np.concatenate(turns) if turns else np.zeros(0, np.int32)
  starts = turn[np.flatnonzero(np.diff(turn, prepend=-1))]
  if np.unique(starts).size != starts.size:
    return 'a turn_id occurs again after another turn'
  return None


def _reward_problem(
    rollout: records.Rollout, weights: Mapping[str, float]
) -> str | None:
  """R9: the reward of a position is the weighted sum of its components."""
  lengths = {s.segment_index: len(s) for s in rollout.segments}
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
  for segment in rollout.segments:
    if not np.allclose(
        segment.reward,
        expected[segment.segment_index],
        rtol=_REWARD_RTOL,
        atol=_REWARD_RTOL,
        equal_nan=True,
    ):
      return (
          f'segment {segment.segment_index}: reward is not the weighted sum of'
          ' reward_components (R9)'
      )
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
  return _offset_problem(segments) or _reference_problem(segments)


def _offset_problem(segments: Sequence[records.Segment]) -> str | None:
  turns = [np.unique(s.turn_id[s.is_action]) for s in segments]
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
    later = turns[k + 1] if k + 1 < len(turns) else np.zeros(0, np.int32)
    offsets = (
        offsets[0] + len(segment),
        offsets[1] + int(segment.is_action.sum()),
        offsets[2] + int(np.isin(turns[k], later, invert=True).sum()),
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
  for segment in segments:
    if (segment.summary_hash is None) != (segment.summary_author is None):
      return f'segment {segment.segment_index} has half a summary'
  return None
