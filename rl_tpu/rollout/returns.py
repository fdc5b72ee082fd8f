"""Rewards and returns of admitted rollouts, on the host in float64 (E2).

Batching and the replacement of groups without spread both read them here, so
that they cannot differ.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from rl_tpu.advantages import stepwise
from rl_tpu.records import records
from rl_tpu.rewards import components
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.rollout import chain
from rl_tpu.rollout import timeline
from rl_tpu.text import hashing
from rl_tpu.types import termination as term

ANCHORS = ('state', 'observation')


@dataclasses.dataclass(frozen=True, eq=False)
class Rewards:
  """What the rewards of a batch come to.

  Attributes:
    step: normalised step reward of every action, after G5.
    reward: the same with the score on the last action of each rollout (G6).
    score_R: normalised score in use, 0 where none is.
    return_R: undiscounted return (E2).
    raw_return_R: the same before normalisation (D1).
    dropped_R: rewards before the first stored action, before normalisation.
  """

  step: np.ndarray
  reward: np.ndarray
  score_R: np.ndarray
  return_R: np.ndarray
  raw_return_R: np.ndarray
  dropped_R: np.ndarray


def rewards(
    members: Sequence[admission_lib.Admitted],
    flat: timeline.Tokens,
    acts: timeline.Actions,
) -> Rewards:
  """Rewards of members whose tokens and actions are laid out."""
  count = len(members)
  score_R = np.asarray([m.score for m in members], np.float64)
  raw_score_R, divisor_R = score_R.copy(), np.ones(count, np.float64)
  for place, member in enumerate(members):
    if member.scored is not None:
      raw_score_R[place] = member.scored.raw_score
      divisor_R[place] = member.scored.scale.divisor
  raw, dropped_R = timeline.action_rewards(
      flat, acts, np.zeros(count), _recorded(members)
  )
  step = raw / divisor_R[acts.rollout]
  reward = step.copy()
  last = np.flatnonzero(acts.is_last)
  reward[last] += score_R[acts.rollout[last]]
  sums = lambda values: np.bincount(acts.rollout, values, minlength=count)
  return Rewards(
      step=step,
      reward=reward,
      score_R=score_R,
      return_R=sums(reward).astype(np.float64),
      raw_return_R=sums(raw).astype(np.float64) + raw_score_R,
      dropped_R=dropped_R,
  )


def _recorded(
    members: Sequence[admission_lib.Admitted],
) -> np.ndarray:
  """Weighted reward of every token, segments in time order."""
  parts = []
  for member in members:
    segments = member.rollout.segments
    values = [s.reward for s in segments]
    if member.scored is not None and member.scored.rewards is not None:
      values = member.scored.rewards
    order = sorted(
        range(len(segments)), key=lambda k: segments[k].segment_index
    )
    parts += [np.asarray(values[k], np.float64) for k in order]
  return np.concatenate(parts) if parts else np.zeros(0, np.float64)


def action_table(
    members: Sequence[admission_lib.Admitted],
    flat: timeline.Tokens,
    acts: timeline.Actions,
    *,
    place_J: np.ndarray,
    step: np.ndarray,
    anchor: str,
) -> stepwise.ActionTable:
  """Steps and turns of a batch, for the estimators of E5 and E6.

  Args:
    members: admitted rollouts.
    flat: their tokens.
    acts: their actions.
    place_J: flat index of every action in the packed rows.
    step: normalised step reward of every action.
    anchor: state or observation.
  """
  starts = acts.starts_turn
  return stepwise.ActionTable(
      place_J=place_J,
      rollout_J=acts.rollout,
      turn_J=np.cumsum(starts) - 1,
      reward_J=step,
      is_step_J=_is_step(members, flat, acts),
      anchor_U=_anchors(members, flat, acts.token[starts], anchor),
  )


def _is_step(members, flat, acts) -> np.ndarray:
  """Actions that were given a step reward of a weight that counts (E5)."""
  starts = {}
  for k, segment in enumerate(flat.segments):
    key = int(flat.segment_rollout[k]), segment.segment_index
    starts[key] = int(flat.segment_start[k])
  token, rollout = [], []
  for number, member in enumerate(members):
    weights = None if member.scored is None else member.scored.weights
    for name, places in member.rollout.reward_components.items():
      if not _counts(name, weights):
        continue
      for segment, position, _ in places:
        # A dropped prefix took the places of its rewards with it.
        if (number, segment) in starts:
          token.append(starts[number, segment] + position)
          rollout.append(number)
  out = np.zeros(len(acts.token), bool)
  if token:
    # As in G5: the latest action at or before the place.
    target = np.searchsorted(acts.token, np.asarray(token), side='right') - 1
    found = target >= 0
    found[found] = (
        acts.rollout[target[found]] == np.asarray(rollout)[found]
    )
    out[target[found]] = True
  return out


def _counts(name: str, weights: Mapping[str, float] | None) -> bool:
  if name == components.TERMINAL:
    return False
  return weights is None or bool(weights.get(name, 0.0))


def _anchors(members, flat, token_U: np.ndarray, anchor: str) -> np.ndarray:
  """Number of the state that every turn starts in; -1 where it has no name."""
  if anchor not in ANCHORS:
    raise ValueError(
        f'gigpo.anchor must be one of {", ".join(ANCHORS)}, got {anchor!r}.'
    )
  numbers: dict[str, int] = {}
  chains = [chain.in_time_order(m.rollout) for m in members]
  first = np.searchsorted(flat.segment_rollout, np.arange(len(members)))
  out = np.full(len(token_U), -1, np.int64)
  for place, token in enumerate(token_U):
    segment, position = int(flat.segment[token]), int(flat.position[token])
    number = int(flat.rollout[token])
    rollout = members[number].rollout
    if anchor == 'state':
      turn = int(flat.segments[segment].turn_id[position])
      state = rollout.state_ids.get(turn)
    else:
      index = segment - int(first[number])
      state = observation_before(chains[number], index, position).tobytes()
      state = hashing.of_text(state.hex())
    if state is not None:
      name = hashing.of_json([rollout.env_snapshot, state])
      out[place] = numbers.setdefault(name, len(numbers))
  return out


def observation_before(
    segments: Sequence[records.Segment], index: int, position: int
) -> np.ndarray:
  """Token ids shown since the last action, up to a position.

  At the start of a window that is all of its context. A resumed segment
  repeats its predecessor first (`resume_cut`): there the observation goes on
  from it.

  Args:
    segments: of one rollout, in time order.
    index: which of them.
    position: first token that is not part of it.
  """
  segment = segments[index]
  earlier = np.flatnonzero(segment.is_action[:position])
  if earlier.size:
    return segment.token[earlier[-1] + 1 : position]
  resumed = index and segments[index - 1].end_kind == term.Cut.RESUME.value
  before = len(segments[index - 1]) if index else 0
  if resumed and before <= position:
    shown = observation_before(segments, index - 1, before)
    return np.concatenate([shown, segment.token[before:position]])
  return segment.token[:position]
