"""The first of two passes over a minibatch (L20, L10).

A rollout's segments may lie in several microbatches and on several devices, so
a quantity of the whole rollout (GSPO's ratio, seq_mis) or of the whole
minibatch (weights without gated tokens) has to be known before gradients are
taken. This pass takes none: it reduces sums by dense id and hands constants to
the second one.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rl_tpu.losses import aggregation
from rl_tpu.losses import by_id
from rl_tpu.losses import correction as correction_lib
from rl_tpu.losses import objective
from rl_tpu.losses import policy as policy_lib
from rl_tpu.losses import ratio
from rl_tpu.types import batch as batch_lib


def reads_policy(settings: objective.Settings) -> bool:
  """The first pass needs the current log-probabilities."""
  kind = settings.policy.loss
  return kind == 'gspo' or (kind == 'dis' and settings.loss.renormalise_gated)


def needed(settings: objective.Settings) -> bool:
  """The objective takes two passes."""
  return (
      reads_policy(settings)
      or settings.policy.correction == 'seq_mis'
      or settings.loss.renormalise_gated
  )


def plan(
    parts: Sequence[batch_lib.Minibatch],
    logps: Sequence[jax.Array] | None,
    *,
    settings: objective.Settings,
) -> tuple[batch_lib.Plan, ...]:
  """What the second pass needs of the whole minibatch.

  Args:
    parts: its microbatches; all with the same `origin`.
    logps: log-probabilities of each under the trained parameters, where
      `reads_policy` says so.
    settings: the objective.

  Returns:
    A plan for each microbatch.

  Raises:
    ValueError: microbatches that do not say where their segments belong.
  """
  if any(part.origin is None for part in parts):
    raise ValueError(
        'a two-pass objective needs Minibatch.origin: rollout and task of'
        ' every segment (L20).'
    )
  fixes = _corrections(parts, settings)
  weights = [part.policy_weight_BT for part in parts]
  renormalise = settings.loss.renormalise_gated
  if renormalise:
    weights = _renormalised(parts, logps, fixes, settings)
  plans = [
      batch_lib.Plan(
          weight_BT=weight_BT if renormalise else None,
          correction_BT=None if fix is None else fix.weight_BT,
      )
      for weight_BT, fix in zip(weights, fixes)
  ]
  if settings.policy.loss == 'gspo':
    plans = _gspo(parts, logps, weights, plans, settings)
  return tuple(plans)


def _mask(part: batch_lib.Minibatch) -> jax.Array:
  return part.policy_weight_BT > 0


def _segment_sums(parts, values) -> jax.Array:
  """Sums by segment over all microbatches: one number each, [N]."""
  size = parts[0].origin.rollout_N.shape[0]
  return sum(
      by_id.segment_sum(value, _mask(part), part.rows.segment_BT, size=size)
      for part, value in zip(parts, values)
  )


def _rollout_means(parts, values) -> jax.Array:
  """Mean over a rollout's tokens in M, at every segment [N]."""
  origin = parts[0].origin
  ones = [jnp.ones_like(value) for value in values]
  mean_R = by_id.mean(
      by_id.rollout_sum(_segment_sums(parts, values), origin),
      by_id.rollout_sum(_segment_sums(parts, ones), origin),
  )
  return by_id.at_segments(mean_R, origin)


def _corrections(parts, settings):
  """L13's weight for every microbatch; None where there is none."""
  policy = settings.policy
  if policy.correction == 'none':
    return [None] * len(parts)
  gaps = [
      correction_lib.log_gap(
          part.base_logp_BT, part.rows.behaviour_logp_BT, _mask(part)
      )
      for part in parts
  ]
  if policy.correction == 'seq_mis':
    mean_N = _rollout_means(parts, gaps)
    gaps = [by_id.at_tokens(mean_N, part.rows.segment_BT) for part in parts]
  return [
      correction_lib.weigh(gap_BT, _mask(part), policy=policy)
      for part, gap_BT in zip(parts, gaps)
  ]


def _renormalised(parts, logps, fixes, settings) -> list[jax.Array]:
  """Aggregation weights over the tokens that no gate drops (L10)."""
  kept = []
  for index, part in enumerate(parts):
    kept_BT = _mask(part)
    if settings.policy.loss == 'dis':
      log_ratio_BT = ratio.masked_difference(
          logps[index], part.rows.behaviour_logp_BT, kept_BT
      )
      ratio_BT = ratio.bounded_exp(log_ratio_BT)
      kept_BT &= ~policy_lib.dis_gate(ratio_BT, dis=settings.dis)
    if fixes[index] is not None:
      kept_BT &= ~fixes[index].gated_BT
    kept.append(kept_BT)
  origin = parts[0].origin
  count_N = _segment_sums(parts, [k.astype(jnp.float32) for k in kept])
  weight_N = aggregation.segment_weights(
      count_N,
      origin,
      mode=settings.loss.aggregation,
      constant=settings.loss.constant,
  )
  return [
      jnp.where(kept_BT, by_id.at_tokens(weight_N, part.rows.segment_BT), 0.0)
      for part, kept_BT in zip(parts, kept)
  ]


def _gspo(parts, logps, weights, plans, settings) -> list[batch_lib.Plan]:
  """The rollout's log ratio, and the slope of L15 through its mean."""
  origin = parts[0].origin
  log_ratios, gains, losses = [], [], []
  for part, logp_BT, weight_BT, plan_ in zip(parts, logps, weights, plans):
    mask_BT = _mask(part)
    log_ratios.append(
        ratio.masked_difference(logp_BT, part.base_logp_BT, mask_BT)
    )
    pull_BT = jnp.where(mask_BT, part.advantage_BT, 0.0) * weight_BT
    if plan_.correction_BT is not None:
      pull_BT = pull_BT * plan_.correction_BT
    gains.append(jnp.maximum(pull_BT, 0.0))
    losses.append(jnp.minimum(pull_BT, 0.0))
  mean_N = _rollout_means(parts, log_ratios)
  ones = [jnp.ones_like(x) for x in log_ratios]
  total = lambda values: by_id.at_segments(
      by_id.rollout_sum(_segment_sums(parts, values), origin), origin
  )
  ratio_N = ratio.bounded_exp(mean_N)
  gspo = settings.gspo
  moving_N = jnp.where(ratio_N > 1.0 + gspo.eps_high, 0.0, total(gains))
  moving_N += jnp.where(ratio_N < 1.0 - gspo.eps_low, 0.0, total(losses))
  slope_N = by_id.mean(-ratio_N * moving_N, total(ones))
  slope_N = jnp.where(ratio.is_saturated(mean_N), 0.0, slope_N)
  spread = lambda value_N, part: by_id.at_tokens(
      value_N, part.rows.segment_BT
  )
  return [
      plan_._replace(
          log_ratio_BT=spread(mean_N, part), slope_BT=spread(slope_N, part)
      )
      for part, plan_ in zip(parts, plans)
  ]
