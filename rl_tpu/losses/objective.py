"""What one microbatch adds to the actor's and to the critic's objective.

Both functions return sums under fixed weights. Statistics are (total, count)
pairs; a name that ends in `_max` is a plain maximum.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.losses import kl as kl_lib
from rl_tpu.losses import policy
from rl_tpu.losses import ratio
from rl_tpu.losses import value as value_lib
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import sums

Stats = dict[str, Any]


def actor_terms(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    minibatch: batch_lib.Minibatch,
    *,
    clip: schema.ClipConfig,
    kl: schema.KlConfig,
    entropy_coef: float,
) -> tuple[jax.Array, Stats]:
  """Weighted policy loss of a microbatch: PPO, KL to the reference, entropy.

  Args:
    logp_BT: log-probability of each token under the trained parameters.
    entropy_BT: entropy of the distribution it was drawn from (L5).
    minibatch: rows, advantages and weights; where the weight is 0 nothing is
      read.
    clip: bounds of the ratio.
    kl: KL term of the loss, with `in_ = loss`.
    entropy_coef: weight of the entropy bonus.

  Returns:
    The sum of weight * loss, and statistics.
  """
  weight_BT = minibatch.policy_weight_BT
  mask_BT = weight_BT > 0
  terms = policy.clipped_loss(
      logp_BT,
      minibatch.base_logp_BT,
      minibatch.advantage_BT,
      mask_BT,
      clip=clip,
  )
  entropy_BT = jnp.where(mask_BT, entropy_BT, 0.0)
  parts = {'policy_loss': _weighted(terms.loss_BT, weight_BT)}
  if kl.in_ == 'loss':
    kl_BT = kl_lib.kl_loss(
        logp_BT,
        minibatch.reference_logp_BT,
        minibatch.rows.behaviour_logp_BT,
        mask_BT,
        estimator=kl.estimator or 'k2',
        importance=kl.importance,
    )
    parts['kl_loss'] = kl.coef * _weighted(kl_BT, weight_BT)
  if entropy_coef:
    parts['entropy_loss'] = -entropy_coef * _weighted(entropy_BT, weight_BT)
  loss = sum(parts.values())
  stats = _actor_stats(logp_BT, entropy_BT, minibatch, terms, mask_BT)
  if kl.in_ != 'none':
    stats.update(_reference_stats(logp_BT, minibatch, mask_BT))
  # Sums under weights that add up to 1 over the minibatch (token mode): the
  # weights are their denominator.
  weight = _weighted(jnp.ones_like(weight_BT), weight_BT)
  for name, total in {**parts, 'loss': loss}.items():
    stats[name] = sums.TokenSum(total, weight)
  return loss, jax.lax.stop_gradient(stats)


def critic_terms(
    value_BT: jax.Array,
    minibatch: batch_lib.Minibatch,
    *,
    value_clip: float | None,
) -> tuple[jax.Array, Stats]:
  """Weighted value loss of a microbatch, and statistics."""
  weight_BT = minibatch.critic_weight_BT
  mask_BT = weight_BT > 0
  terms = value_lib.value_loss(
      value_BT,
      minibatch.value_BT,
      minibatch.return_BT,
      mask_BT,
      value_clip=value_clip,
  )
  loss = _weighted(terms.loss_BT, weight_BT)
  stats = {
      'loss': sums.TokenSum(
          loss, _weighted(jnp.ones_like(weight_BT), weight_BT)
      ),
      'clip_fraction': sums.masked_sum(terms.clipped_BT, mask_BT),
      'bias': sums.masked_sum(terms.error_BT, mask_BT),
      'mse': sums.masked_sum(jnp.square(terms.error_BT), mask_BT),
      'value': sums.masked_sum(value_BT, mask_BT),
      'return': sums.masked_sum(minibatch.return_BT, mask_BT),
  }
  return loss, jax.lax.stop_gradient(stats)


def _weighted(value_BT: jax.Array, weight_BT: jax.Array) -> jax.Array:
  """Sum of weight * value; what has no weight is not read (L9)."""
  mask_BT = weight_BT > 0
  return jnp.sum(jnp.where(mask_BT, value_BT, 0.0) * weight_BT)


def _actor_stats(logp_BT, entropy_BT, minibatch, terms, mask_BT) -> Stats:
  """Shares and means over the trained tokens of a microbatch."""
  base_BT = minibatch.base_logp_BT
  x_BT = ratio.masked_difference(logp_BT, base_BT, mask_BT)
  gap_BT = ratio.masked_difference(
      logp_BT, minibatch.rows.behaviour_logp_BT, mask_BT
  )
  # KL(base || theta) is estimated on tokens of the base policy: k1 and k3 of
  # log base - log theta (O1).
  k3_BT = ratio.bounded_expm1(x_BT) - x_BT
  token = lambda value_BT: sums.masked_sum(value_BT, mask_BT)
  return {
      'clip_high': token(terms.clip_high_BT),
      'clip_low': token(terms.clip_low_BT),
      'clip_fraction': token(terms.clip_high_BT | terms.clip_low_BT),
      'dual_clip': token(terms.dual_BT),
      'ratio_saturated': token(terms.saturated_BT),
      'ratio': token(terms.ratio_BT),
      'ratio_squared': token(jnp.square(terms.ratio_BT)),
      'ratio_max': _largest(jnp.where(mask_BT, terms.ratio_BT, 0.0)),
      'approx_kl_k1': token(-x_BT),
      'approx_kl_k3': token(k3_BT),
      'behaviour_gap_abs': token(jnp.abs(gap_BT)),
      'behaviour_gap_max': _largest(jnp.abs(gap_BT)),
      'entropy': token(entropy_BT),
      'advantage': token(minibatch.advantage_BT),
  }


def _largest(value_BT: jax.Array) -> jax.Array:
  """The maximum of what is not negative; 0 of no rows (K16)."""
  return jnp.max(value_BT, initial=0.0)


def _reference_stats(logp_BT, minibatch, mask_BT) -> Stats:
  x_BT = ratio.masked_difference(
      logp_BT, minibatch.reference_logp_BT, mask_BT
  )
  return {
      f'reference_kl_{name}': sums.masked_sum(
          kl_lib.estimate(x_BT, estimator=name), mask_BT
      )
      for name in ('k1', 'k3')
  }


def merge_stats(left: Stats, right: Stats) -> Stats:
  """Adds totals and counts; maxima stay maxima."""
  merged = {}
  for name, value in left.items():
    if name.endswith('_max'):
      merged[name] = jnp.maximum(value, right[name])
    else:
      merged[name] = sums.TokenSum(
          value[0] + right[name][0], value[1] + right[name][1]
      )
  return merged


def stat_values(stats: Stats) -> dict[str, float]:
  """Means of the sums, for logging; 0 where nothing was counted.

  `ratio_saturated_count` is the count itself (L21), and `ess_share` the
  effective sample size of the token ratios over their number (O1).
  """
  values = {}
  for name, value in stats.items():
    if name.endswith('_max'):
      values[name] = float(value)
      continue
    total, count = (float(np.asarray(x)) for x in (value[0], value[1]))
    values[name] = total / count if count else 0.0
    if name == 'ratio_saturated':
      values['ratio_saturated_count'] = total
  if values.get('ratio_squared'):
    values['ess_share'] = values['ratio'] ** 2 / values['ratio_squared']
  return values
