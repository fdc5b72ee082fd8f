"""All tokens and actions of a batch in rollout time order (G1 to G7, T10).

The batch is laid out flat: rollouts in data order, segments in time order,
positions in order. Everything that follows from roles, turns and recorded
rewards is worked out here once, on the host, in float64.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rl_tpu.records import records


@dataclasses.dataclass(frozen=True)
class Tokens:
  """Every token of the batch, in time order.

  Attributes:
    segments: the records, in time order.
    segment: index into `segments` of every token.
    rollout: rollout of every token.
    position: position in its segment.
    is_action: role A or S.
    segment_rollout: rollout of every segment.
    segment_start: first token of every segment.
    lengths: tokens of every segment.
  """

  segments: tuple[records.Segment, ...]
  segment: np.ndarray
  rollout: np.ndarray
  position: np.ndarray
  is_action: np.ndarray
  segment_rollout: np.ndarray
  segment_start: np.ndarray
  lengths: np.ndarray

  def column(self, name: str, dtype: np.dtype | type | None = None):
    """One array over all tokens."""
    if not self.segments:
      return np.zeros(0, dtype)
    parts = [getattr(s, name) for s in self.segments]
    return np.concatenate(parts).astype(dtype or parts[0].dtype, copy=False)


def tokens(chains: Sequence[Sequence[records.Segment]]) -> Tokens:
  """Lays the segments of all rollouts out, each chain in time order."""
  segments = tuple(s for chain in chains for s in chain)
  lengths = np.asarray([len(s) for s in segments], np.int64)
  start = np.cumsum(lengths) - lengths
  segment = np.repeat(np.arange(len(segments)), lengths)
  per_rollout = np.asarray([len(chain) for chain in chains], np.int64)
  segment_rollout = np.repeat(np.arange(len(chains)), per_rollout)
  role = (
      np.concatenate([s.role for s in segments])
      if segments
      else np.zeros(0, 'U1')
  )
  return Tokens(
      segments=segments,
      segment=segment,
      rollout=segment_rollout[segment],
      position=np.arange(len(segment)) - start[segment],
      is_action=(role == records.ACTION) | (role == records.SUMMARY),
      segment_rollout=segment_rollout,
      segment_start=start,
      lengths=lengths,
  )


def token_index(flat: Tokens) -> np.ndarray:
  """Index of every token in its rollout, over the stored segments."""
  first = np.searchsorted(flat.rollout, flat.rollout)
  return np.arange(len(flat.rollout)) - first


@dataclasses.dataclass(frozen=True)
class Actions:
  """Every action of the batch, in time order; index j counts over rollouts.

  Attributes:
    token: token index of every action.
    rollout: its rollout.
    segment: its segment.
    is_last: last action of its rollout.
    crosses: the next action of its rollout is in another segment.
    starts_turn: first stored action of its turn.
    ends_turn: the next action of the rollout has another turn, or there is
      none.
    transition: action index of the transition it belongs to: itself, or
      under a turn-level critic its turn's first action (G19).
  """

  token: np.ndarray
  rollout: np.ndarray
  segment: np.ndarray
  is_last: np.ndarray
  crosses: np.ndarray
  starts_turn: np.ndarray
  ends_turn: np.ndarray
  transition: np.ndarray


def actions(flat: Tokens, *, level: str) -> Actions:
  """Works out how actions follow each other."""
  token = np.flatnonzero(flat.is_action)
  rollout, segment = flat.rollout[token], flat.segment[token]
  turn = flat.column('turn_id', np.int64)[token]
  is_last = _differs_from_next(rollout)
  ends_turn = _differs_from_next(turn) | is_last
  starts_turn = np.ones(len(token), bool)
  starts_turn[1:] = ends_turn[:-1]
  transition = np.arange(len(token))
  if level == 'turn':
    transition = np.maximum.accumulate(np.where(starts_turn, transition, 0))
  return Actions(
      token=token,
      rollout=rollout,
      segment=segment,
      is_last=is_last,
      crosses=_differs_from_next(segment) & ~is_last,
      starts_turn=starts_turn,
      ends_turn=ends_turn,
      transition=transition,
  )


def _differs_from_next(values: np.ndarray) -> np.ndarray:
  out = np.ones(len(values), bool)
  out[:-1] = values[:-1] != values[1:]
  return out


def action_rewards(
    flat: Tokens,
    acts: Actions,
    score_R: np.ndarray,
    recorded: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Reward of every action (G5, G6), and what had no action to go to.

  Args:
    flat: the tokens.
    acts: the actions.
    score_R: terminal reward in use of every rollout (0 where none).
    recorded: [tokens] weighted reward of every token; None takes the records'.

  Returns:
    float64 reward of every action, and the sum of the rewards before the
    first stored action of every rollout.
  """
  reward = np.zeros(len(acts.token), np.float64)
  dropped_R = np.zeros(len(score_R), np.float64)
  if recorded is None:
    recorded = flat.column('reward', np.float64)
  place = np.flatnonzero(recorded)
  # The latest action at or before the place, in whatever segment.
  target = np.searchsorted(acts.token, place, side='right') - 1
  found = target >= 0
  found[found] = acts.rollout[target[found]] == flat.rollout[place[found]]
  np.add.at(reward, target[found], recorded[place[found]])
  np.add.at(dropped_R, flat.rollout[place[~found]], recorded[place[~found]])
  last = np.flatnonzero(acts.is_last)
  reward[last] += score_R[acts.rollout[last]]
  return reward, dropped_R


def decaying_transitions(
    flat: Tokens,
    acts: Actions,
    num_rollouts: int,
    *,
    turn_unit: bool,
) -> np.ndarray:
  """N of G11 for every rollout, a dropped prefix included (T10)."""
  head = np.searchsorted(flat.segment_rollout, np.arange(num_rollouts))
  offset = 'turn_offset' if turn_unit else 'action_offset'
  before = [getattr(flat.segments[k], offset) for k in head]
  counted = acts.ends_turn if turn_unit else np.ones_like(acts.is_last)
  stored = np.bincount(acts.rollout[counted], minlength=num_rollouts)
  return np.asarray(before, np.float64) + stored


def later_actions(flat: Tokens, acts: Actions) -> np.ndarray:
  """Actions in later segments of the same rollout, for every segment."""
  count = np.bincount(acts.segment, minlength=len(flat.segments))
  through = np.cumsum(count)
  # Actions up to the end of each segment's rollout.
  last = np.searchsorted(
      flat.segment_rollout, flat.segment_rollout, side='right'
  ) - 1
  return through[last] - through
