"""The timeline in device form: `types.batch.Joins` (G1 to G5, G19, P3)."""

import dataclasses

import numpy as np

from rl_tpu.rollout import packing
from rl_tpu.rollout import timeline
from rl_tpu.types import batch as batch_lib

# Tables are padded to powers of two from here on, so that batches of about
# the same size compile once. An entry is a few bytes: a few hundred segments
# that are sometimes more are not worth a second program.
_MIN_TABLE = 1024


class Grid:
  """Where the tokens of the timeline stand in the rows."""

  def __init__(
      self, flat: timeline.Tokens, layout: packing.Layout, row_length: int
  ):
    """Works out column and flat index (row * T + column) of every token."""
    self.shape = (layout.num_rows, row_length)
    self.column = layout.column[flat.segment] + flat.position
    self.place = layout.row[flat.segment] * row_length + self.column

  def spread(self, values: np.ndarray, fill: float, dtype: type) -> np.ndarray:
    """[B, T] with the values of all tokens, `fill` in padding."""
    return self._fill(self.place, values, fill, dtype)

  def spread_at(
      self, token: np.ndarray, values: np.ndarray, fill: float, dtype: type
  ) -> np.ndarray:
    """[B, T] with values at some tokens, `fill` everywhere else."""
    return self._fill(self.place[token], values, fill, dtype)

  def _fill(self, place, values, fill, dtype) -> np.ndarray:
    out = np.full(self.shape[0] * self.shape[1], fill, dtype)
    out[place] = values
    return out.reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class RolloutTable:
  """What the joins need of every rollout.

  Attributes:
    score: terminal reward in use, 0 where none.
    bootstrap: the end is bootstrapped.
    source: index of its task source.
  """

  score: np.ndarray
  bootstrap: np.ndarray
  source: np.ndarray


def build(
    flat: timeline.Tokens,
    acts: timeline.Actions,
    grid: Grid,
    *,
    reward: np.ndarray,
    policy: np.ndarray,
    critic: np.ndarray,
    table: RolloutTable,
    turn_unit: bool,
    turn_level: bool,
) -> batch_lib.Joins:
  """Spreads the timeline over the rows.

  Args:
    flat: all tokens.
    acts: all actions; their `transition` follows the critic's level.
    grid: places of the tokens.
    reward: reward of every action.
    policy: policy mask of every token.
    critic: critic mask of every token.
    table: figures per rollout.
    turn_unit: gamma and lambda apply between turns only (G10).
    turn_level: one transition per turn (G19).
  """
  starts = np.arange(len(acts.token)) == acts.transition
  token = acts.token[starts]
  return batch_lib.Joins(
      transition_mask_BT=grid.spread_at(token, True, False, bool),
      decay_BT=grid.spread_at(
          acts.token,
          acts.ends_turn if turn_unit and not turn_level else starts,
          False,
          bool,
      ),
      reward_BT=grid.spread_at(acts.token, reward, 0.0, np.float32),
      owner_BT=grid.spread_at(
          acts.token,
          np.where(
              acts.segment[acts.transition] == acts.segment,
              grid.column[acts.token[acts.transition]],
              batch_lib.EARLIER,
          ),
          -1,
          np.int32,
      ),
      next_BT=grid.spread_at(
          token,
          _following(grid.column[token], acts.segment[starts]),
          -1,
          np.int32,
      ),
      rollout_BT=grid.spread(flat.rollout, -1, np.int32),
      segment_BT=grid.spread(flat.segment, -1, np.int32),
      policy_mask_BT=grid.spread(policy, False, bool),
      critic_mask_BT=grid.spread(critic, False, bool),
      **_segment_tables(flat, acts, starts, grid),
      **_rollout_tables(flat, acts, grid, table, turn_unit or turn_level),
  )


def _rollout_tables(
    flat, acts, grid, table, turn_unit: bool
) -> dict[str, np.ndarray]:
  count = len(table.score)
  size_R = table_size(count)
  ends = np.searchsorted(flat.segment_rollout, np.arange(count), side='right')
  final = grid.place[_segment_end(flat)[ends - 1]]
  decays = timeline.decaying_transitions(flat, acts, count, turn_unit=turn_unit)
  return {
      'final_R': _table(final, -1, np.int32, size_R),
      'bootstrap_R': _table(table.bootstrap, False, bool, size_R),
      'score_R': _table(table.score, 0.0, np.float32, size_R),
      'included_R': _table(np.ones(count), False, bool, size_R),
      'decays_R': _table(decays, 1.0, np.float32, size_R),
      'source_R': _table(table.source, 0, np.int32, size_R),
  }


def _segment_tables(flat, acts, starts, grid) -> dict[str, np.ndarray]:
  size_N = table_size(len(flat.segments))
  none_N = np.full(size_N, -1, np.int32)
  first_N, last_N, owner_N, next_N = (none_N.copy() for _ in range(4))
  # Transitions are in time order: those of a segment stand together.
  place, segment = grid.place[acts.token[starts]], acts.segment[starts]
  is_last = np.append(segment[1:] != segment[:-1], True)[: len(segment)]
  is_first = np.roll(is_last, 1)
  first_N[segment[is_first]] = place[is_first]
  last_N[segment[is_last]] = place[is_last]
  next_N[segment[is_last]] = _following(
      segment[is_first], flat.segment_rollout[segment[is_first]]
  )
  begun = acts.segment[acts.transition] != acts.segment
  owner_N[acts.segment[begun]] = grid.place[acts.token[acts.transition[begun]]]
  goes_on = flat.segment_rollout[1:] == flat.segment_rollout[:-1]
  return {
      'first_N': first_N,
      'last_N': last_N,
      'owner_N': owner_N,
      'next_N': next_N,
      'rollout_N': _table(flat.segment_rollout, -1, np.int32, size_N),
      'continues_N': _table(goes_on, False, bool, size_N),
      'later_N': _table(
          timeline.later_actions(flat, acts), 0, np.int32, size_N
      ),
  }


def _following(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
  """The next value of the same owner, -1 after its last."""
  out = np.full(len(values), -1, np.int64)
  out[:-1] = np.where(owner[:-1] == owner[1:], values[1:], -1)
  return out


def _segment_end(flat: timeline.Tokens) -> np.ndarray:
  """Last token of every segment."""
  return flat.segment_start + flat.lengths - 1


def table_size(count: int) -> int:
  """The padded size of a table with `count` entries."""
  return max(_MIN_TABLE, 1 << max(count - 1, 0).bit_length())


def _table(values, fill: float, dtype: type, size: int) -> np.ndarray:
  out = np.full(size, fill, dtype)
  out[: len(values)] = values
  return out
