"""Rollouts into packed rows with their joins and weights (P1 to P5, L8)."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from rl_tpu.advantages import stepwise
from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.records import records
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.rollout import chain
from rl_tpu.rollout import joins as joins_lib
from rl_tpu.rollout import packing
from rl_tpu.rollout import returns
from rl_tpu.rollout import staleness
from rl_tpu.rollout import strata as strata_lib
from rl_tpu.rollout import timeline
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term

@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
  """The rollouts between two weight pushes, packed, on the host.

  Attributes:
    segments: device arrays in numpy form.
    rollouts: records in batch order; index r is the rollout id of the joins.
    minibatches: (first row, row after the last) of the microbatches of every
      minibatch.
    minibatch_R: minibatch of every rollout.
    policy_weight_BT: fixed weights of the policy loss (4.2), 0 on tokens that
      are left out for their version (O2).
    critic_weight_BT: the same for the critic; 0 on held-out tasks (C7).
    time_BT: index of a token in its rollout, in time order, over the stored
      segments; -1 in padding.
    at_cut_BT: the last action before another segment of the rollout.
    sources: names that `joins.source_R` indexes.
    held_out_R: bool, the task never enters a critic update (C7).
    return_R: float64 undiscounted return: step rewards after G5, and the
      score in use (E2), all normalised (D1).
    score_R: float64 the score alone.
    raw_return_R: float64 return before normalisation.
    dropped_reward_R: float64 rewards before the first stored action.
    subgroup_R: comparison of a group estimator, -1 without one (E7).
    actions: steps and turns for the estimators of E5 and E6; None without.
    counts: tokens, rows, padding and dropped rewards, by name.
  """

  segments: batch_lib.SegmentBatch
  rollouts: tuple[records.Rollout, ...]
  minibatches: tuple[tuple[tuple[int, int], ...], ...]
  minibatch_R: np.ndarray
  policy_weight_BT: np.ndarray
  critic_weight_BT: np.ndarray
  time_BT: np.ndarray
  at_cut_BT: np.ndarray
  sources: tuple[str, ...]
  held_out_R: np.ndarray
  return_R: np.ndarray
  score_R: np.ndarray
  raw_return_R: np.ndarray
  dropped_reward_R: np.ndarray
  subgroup_R: np.ndarray
  actions: stepwise.ActionTable | None
  counts: Mapping[str, float]
  _places: tuple[tuple[tuple[int, int, int], ...], ...]

  def unpack(self, array_BT: np.ndarray) -> list[list[np.ndarray]]:
    """Values per rollout and segment, segments as the record stores them."""
    array_BT = np.asarray(array_BT)
    return [
        [array_BT[row, start:stop] for row, start, stop in places]
        for places in self._places
    ]

  def microbatches(self, minibatch: int) -> list[slice]:
    """Row slices of one minibatch."""
    return [slice(*span) for span in self.minibatches[minibatch]]

  def minibatch_rollouts(self, minibatch: int) -> list[records.Rollout]:
    """The rollouts that one optimizer step trains on (L18)."""
    members = np.flatnonzero(self.minibatch_R == minibatch)
    return [self.rollouts[r] for r in members]


def build(
    admitted: admission_lib.Admission | Sequence[admission_lib.Admitted],
    *,
    batching: schema.BatchingConfig,
    gae: schema.GaeConfig,
    critic: schema.CriticConfig,
    loss: schema.LossConfig,
    compaction: schema.CompactionConfig,
    pad_id: int = 0,
    anchor: str | None = None,
    oldest_version: int | None = None,
    max_support: int = 0,
) -> Batch:
  """Packs admitted rollouts; membership and order are those of the data.

  Args:
    admitted: the policy batch and critic-only rollouts.
    batching: rows, minibatches and microbatches.
    gae: time unit of the recursion.
    critic: level, and the held-out share.
    loss: aggregation of both losses.
    compaction: whether summary tokens train the actor (G16).
    pad_id: a valid token id (K21).
    anchor: what a turn's state is named by, state or observation (E6), for
      the estimators that compare steps; None leaves `actions` out.
    oldest_version: tokens of older policy versions have no weight in the
      policy loss (O2); None leaves none out.
    max_support: ids of a sampling support that travel with each token (R5);
      0 leaves supports out.

  Raises:
    ValueError: a segment longer than a row, or a larger support; admission
      discards those.
  """
  members = tuple(getattr(admitted, 'admitted', admitted))
  rollouts = tuple(m.rollout for m in members)
  flat = timeline.tokens([chain.in_time_order(r) for r in rollouts])
  acts = timeline.actions(flat, level=critic.level)
  minibatch_R = packing.split_rollouts(len(members), batching.minibatches)
  layout = packing.pack(
      flat.lengths,
      minibatch_R[flat.segment_rollout],
      num_minibatches=batching.minibatches,
      row_length=batching.row_length,
      rows_per_microbatch=batching.rows_per_microbatch,
  )
  grid = joins_lib.Grid(flat, layout, batching.row_length)
  table = _table(members)
  found = returns.rewards(members, flat, acts)
  actions = None
  if anchor is not None:
    actions = returns.action_table(
        members, flat, acts, place_J=grid.place[acts.token], step=found.step,
        anchor=anchor,
    )
  policy, critic_mask = _masks(members, flat, acts, compaction)
  held_out_R = _held_out([r.task_id for r in rollouts], critic)
  joins = joins_lib.build(
      flat,
      acts,
      grid,
      reward=found.reward,
      policy=policy,
      critic=critic_mask,
      table=table,
      turn_unit=gae.time_unit == 'turn',
      turn_level=critic.level == 'turn',
  )
  updated = critic_mask & ~held_out_R[flat.rollout]
  stale = staleness.gate(
      flat.column('behaviour_version', np.int64), policy, oldest_version
  )
  # A token left out keeps its place in the denominator unless that is asked
  # for (L10); the critic and the normalisation use it all the same.
  counted = policy & ~stale if loss.renormalise_gated else policy
  weights = _weights(flat, rollouts, minibatch_R, counted, updated, loss)
  return Batch(
      segments=batch_lib.SegmentBatch(
          rows=_rows(flat, grid, pad_id, max_support),
          joins=joins,
          strata=strata_lib.strata(flat, acts, grid),
          origin=strata_lib.origin(flat, rollouts),
      ),
      rollouts=rollouts,
      minibatches=layout.minibatches,
      minibatch_R=minibatch_R,
      policy_weight_BT=grid.spread(
          np.where(stale, 0.0, weights[0]), 0, np.float32
      ),
      critic_weight_BT=grid.spread(weights[1], 0, np.float32),
      time_BT=grid.spread(timeline.token_index(flat), -1, np.int32),
      at_cut_BT=grid.spread_at(acts.token, acts.crosses, False, bool),
      sources=_sources(members),
      held_out_R=held_out_R,
      return_R=found.return_R,
      score_R=found.score_R,
      raw_return_R=found.raw_return_R,
      dropped_reward_R=found.dropped_R,
      subgroup_R=_subgroups(members),
      actions=actions,
      counts={
          **_counts(flat, grid, rollouts, found.dropped_R, weights),
          'stale_tokens': int(stale.sum()),
          'stale_weight': float(weights[0][stale].sum()),
          'policy_weight': float(weights[0].sum()),
      },
      _places=_places(rollouts, flat, layout),
  )


def _table(
    members: Sequence[admission_lib.Admitted],
) -> joins_lib.RolloutTable:
  sources = _sources(members)
  bootstrap = term.EndMode.BOOTSTRAP
  return joins_lib.RolloutTable(
      score=np.asarray([m.score for m in members], np.float64),
      bootstrap=np.asarray(
          [m.verdict.end_mode == bootstrap for m in members], bool
      ),
      source=np.searchsorted(sources, [m.rollout.source for m in members]),
  )


def _sources(members: Sequence[admission_lib.Admitted]) -> tuple[str, ...]:
  return tuple(sorted({m.rollout.source for m in members}))


def _subgroups(members: Sequence[admission_lib.Admitted]) -> np.ndarray:
  numbers = [-1 if m.subgroup is None else m.subgroup for m in members]
  return np.asarray(numbers, np.int64)


def _rows(
    flat: timeline.Tokens, grid: joins_lib.Grid, pad_id: int, max_support: int
) -> batch_lib.Rows:
  logprob = np.where(
      flat.is_action, flat.column('behaviour_logprob', np.float32), 0.0
  )
  return batch_lib.Rows(
      token_BT=grid.spread(flat.column('token', np.int32), pad_id, np.int32),
      position_BT=grid.spread(flat.position, 0, np.int32),
      segment_BT=grid.spread(flat.segment, -1, np.int32),
      action_mask_BT=grid.spread(flat.is_action, False, bool),
      behaviour_logp_BT=grid.spread(logprob, 0.0, np.float32),
      support_BTM=_supports(flat, grid, max_support) if max_support else None,
  )


def _supports(
    flat: timeline.Tokens, grid: joins_lib.Grid, max_support: int
) -> np.ndarray:
  """[B, T, M] ids that each token could have been drawn from (L16)."""
  out = np.full((grid.shape[0] * grid.shape[1], max_support), -1, np.int32)
  for index, segment in enumerate(flat.segments):
    if segment.support is not None:
      start = flat.segment_start[index]
      place = grid.place[start : start + len(segment)]
      out[place] = support_lib.padded(segment.support, max_support)
  return out.reshape(*grid.shape, max_support)


def _masks(
    members: Sequence[admission_lib.Admitted],
    flat: timeline.Tokens,
    acts: timeline.Actions,
    compaction: schema.CompactionConfig,
) -> tuple[np.ndarray, np.ndarray]:
  """Policy and critic mask of every token (G16, G19)."""
  in_policy = np.asarray([m.verdict.in_policy_batch for m in members], bool)
  in_critic = np.asarray([m.verdict.in_critic_batch for m in members], bool)
  policy = flat.is_action & in_policy[flat.rollout]
  if not compaction.summary_in_policy_loss:
    policy &= flat.column('role', 'U1') != records.SUMMARY
  critic = np.zeros(len(flat.rollout), bool)
  critic[acts.token[acts.transition]] = True
  return policy, critic & in_critic[flat.rollout]


def _weights(
    flat: timeline.Tokens,
    rollouts: Sequence[records.Rollout],
    minibatch_R: np.ndarray,
    policy: np.ndarray,
    critic: np.ndarray,
    loss: schema.LossConfig,
) -> tuple[np.ndarray, np.ndarray]:
  """Weights of every token, from the whole masks of its minibatch (L8)."""
  task_of: dict[str, int] = {}
  task_R = np.asarray(
      [task_of.setdefault(r.task_id, len(task_of)) for r in rollouts], np.int64
  )
  out = (np.zeros(len(policy)), np.zeros(len(policy)))
  minibatch = minibatch_R[flat.rollout]
  for part in np.unique(minibatch):
    here = minibatch == part
    for mask, weight in zip((policy, critic), out):
      weight[here] = aggregation.weights(
          mask[here],
          segment=flat.segment[here],
          rollout=flat.rollout[here],
          task=task_R[flat.rollout[here]],
          mode=loss.aggregation,
          constant=loss.constant,
      )
  return out


def _held_out(
    task_ids: Sequence[str], critic: schema.CriticConfig
) -> np.ndarray:
  """Tasks that no critic update sees, by hash of the id (C7)."""
  return np.asarray(
      [task_hash(task_id) < critic.holdout_fraction for task_id in task_ids],
      bool,
  )


def task_hash(task_id: str) -> float:
  """A number in [0, 1) that depends on the id alone."""
  digest = hashlib.blake2b(task_id.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big') / 2**64


def _counts(flat, grid, rollouts, dropped_R, weights) -> dict[str, float]:
  # A batch without rollouts has rows all the same (K16).
  real, padded = len(flat.rollout), grid.shape[0] * grid.shape[1]
  whole = np.asarray(
      [len(r.segments) == r.num_segments for r in rollouts], bool
  )
  return {
      'rows': grid.shape[0],
      'segments': len(flat.segments),
      'rollouts': len(rollouts),
      'real_tokens': real,
      'padded_tokens': padded,
      'waste': 1.0 - real / padded,
      'action_tokens': int(flat.is_action.sum()),
      'action_share': float(flat.is_action.sum()) / padded,
      'policy_tokens': int((weights[0] > 0).sum()),
      'critic_tokens': int((weights[1] > 0).sum()),
      'reward/before_action': float(dropped_R[whole].sum()),
      'reward/before_kept_action': float(dropped_R[~whole].sum()),
  }


def _places(rollouts, flat, layout):
  """(row, start, stop) of every stored segment of every rollout."""
  rows, columns = layout.row.tolist(), layout.column.tolist()
  place_of = {
      id(segment): (rows[n], columns[n], columns[n] + len(segment))
      for n, segment in enumerate(flat.segments)
  }
  return tuple(
      tuple(place_of[id(segment)] for segment in rollout.segments)
      for rollout in rollouts
  )
