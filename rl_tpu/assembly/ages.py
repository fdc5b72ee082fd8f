"""How old a batch is, and how far its sampler is from the policy (O1, O2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rl_tpu.assembly import critic_figures
from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.metrics import age_figures
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import staleness
from rl_tpu.sharding import placement

Figures = dict[str, float | None]


def figures(
    config: schema.ExperimentConfig,
    batch: batching.Batch,
    scored: update_lib.Scored,
    *,
    version: int,
) -> Figures:
  """Version gaps, waits, and what was left out, by length bucket too.

  KL, effective sample size, clipped and gated shares in behaviour mode are the
  learner's, which has them by length bucket as well; in decoupled mode its
  ratio is to another baseline, and the figures to the sampler are made here.

  Args:
    config: the experiment.
    batch: the batch.
    scored: log-probabilities of the baseline.
    version: the actor's version that the batch was scored under.
  """
  mask_BT = np.asarray(batch.segments.joins.policy_mask_BT)
  rollout = np.asarray(batch.segments.joins.rollout_BT)[mask_BT]
  rollouts = batch.rollouts
  length = age_figures.length_bucket([r.num_actions for r in rollouts])
  values = age_figures.figures(
      age_figures.Ages(
          gap=version - critic_figures.versions(batch)[mask_BT],
          rollout=rollout,
          oldest=version
          - np.asarray([staleness.oldest_version(r) for r in rollouts], int),
          waited=np.asarray(
              [r.t_consumed - r.t_enqueued for r in rollouts], np.float64
          ),
          length=length,
      )
  )
  if config.policy.baseline == 'decoupled':
    mu_BT = np.asarray(batch.segments.rows.behaviour_logp_BT, np.float64)
    gap = np.asarray(scored.base_logp_BT, np.float64)[mask_BT] - mu_BT[mask_BT]
    values |= age_figures.importance(gap)
    values |= age_figures.importance_by_length(gap, length[rollout])
  if config.staleness.over == 'mask':
    counts = batch.counts
    values['policy/stale_share'] = counts['stale_tokens'] / max(
        int(mask_BT.sum()), 1
    )
    values['policy/stale_weight'] = counts['stale_weight'] / max(
        counts['policy_weight'], 1e-30
    )
  return values


def kl_figures(kl: Mapping[str, float]) -> Figures:
  """Mean and largest KL per rollout, where it was measured."""
  if not kl:
    return {}
  found = np.asarray(list(kl.values()), np.float64)
  return {
      'rollout/kl_behaviour_mean': float(found.mean()),
      'rollout/kl_behaviour_max': float(found.max()),
  }


def behaviour_kl(
    rollouts: Sequence[records.Rollout],
    *,
    config: schema.ExperimentConfig,
    learner: learner_lib.Learner,
    params: Any,
) -> dict[str, float]:
  """k3 of the sampler to the policy over each rollout's sampled tokens.

  A forward pass over the rollouts, in rows of the same shape as the batch.

  Args:
    rollouts: to be measured; each fits the rows.
    config: the experiment.
    learner: has the policy's scoring pass.
    params: of the policy.
  """
  if not rollouts:
    return {}
  batch = batching.build(
      admission.admit_all(rollouts),
      batching=schema.BatchingConfig(
          row_length=config.batching.row_length,
          rows_per_microbatch=config.batching.rows_per_microbatch,
      ),
      gae=config.gae,
      critic=config.critic,
      loss=schema.LossConfig(),
      compaction=config.compaction,
      max_support=config.sampling.recorded_support,
  )
  spans = [span for part in batch.minibatches for span in part]
  rows = [
      learner.place_rows(
          jax.tree.map(lambda x: np.asarray(x)[start:stop], batch.segments.rows)
      )
      for start, stop in spans
  ]
  parts = placement.fetch(learner.logp(params, rows))
  logp_BT = np.concatenate(parts, axis=0)
  mask_BT = np.asarray(batch.segments.rows.action_mask_BT)
  mu_BT = np.asarray(batch.segments.rows.behaviour_logp_BT, np.float64)
  gap = logp_BT[mask_BT].astype(np.float64) - mu_BT[mask_BT]
  rollout = np.asarray(batch.segments.joins.rollout_BT)[mask_BT]
  return {
      record.rollout_id: age_figures.importance(gap[rollout == r])[
          'policy/kl_behaviour_k3'
      ]
      for r, record in enumerate(rollouts)
  }
