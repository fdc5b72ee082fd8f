"""Policy terms per token: PPO, DIS, CISPO and GSPO (L1 to L3, L14, L15)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.losses import ratio
from rl_tpu.types import shapes


class PolicyTerms(NamedTuple):
  """Per-token loss and flags; 0 and False off the mask.

  Attributes:
    loss_BT: the loss of each token, without any weight.
    ratio_BT: pi_theta / pi_base, 1 off the mask.
    clip_high_BT: A > 0 and the ratio above its ceiling: no gradient.
    clip_low_BT: A < 0 and the ratio below its floor: no gradient.
    dual_BT: the dual clip's bound holds: no gradient (L3).
    gated_BT: a gate drops the token's term (L10).
    saturated_BT: the log ratio left [-20, 20].
  """

  loss_BT: jax.Array
  ratio_BT: jax.Array
  clip_high_BT: jax.Array
  clip_low_BT: jax.Array
  dual_BT: jax.Array
  gated_BT: jax.Array
  saturated_BT: jax.Array


def clipped_loss(
    logp_BT: jax.Array,
    base_logp_BT: jax.Array,
    advantage_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    clip: schema.ClipConfig,
) -> PolicyTerms:
  """max(-rho A, -clip(rho) A) per token (PPO, 1707.06347), L2 and L3.

  Args:
    logp_BT: log-probability of each token under the trained parameters.
    base_logp_BT: the ratio's denominator; no gradient flows into it.
    advantage_BT: advantage of the token; no gradient flows into it.
    mask_BT: True where the token is trained.
    clip: bounds of the ratio, and the dual bound.

  Returns:
    Loss and flags of every token.
  """
  shapes.check_shapes(
      logp_BT=logp_BT,
      base_logp_BT=base_logp_BT,
      advantage_BT=advantage_BT,
      mask_BT=mask_BT,
  )
  log_ratio_BT = ratio.masked_difference(
      logp_BT, jax.lax.stop_gradient(base_logp_BT), mask_BT
  )
  return _clipped(
      log_ratio_BT,
      advantage_BT,
      mask_BT,
      eps_low=clip.eps_low,
      eps_high=clip.eps_high,
      dual=clip.dual,
  )


def gspo_loss(
    log_ratio_BT: jax.Array,
    advantage_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    gspo: schema.GspoConfig,
) -> PolicyTerms:
  """The clipped loss of the rollout's ratio (GSPO, 2507.18071), L15.

  Args:
    log_ratio_BT: mean log ratio of the rollout that the token belongs to.
    advantage_BT: advantage of the token; no gradient flows into it.
    mask_BT: True where the token is trained.
    gspo: bounds of the rollout's ratio.

  Returns:
    Loss and flags of every token; `ratio_BT` is the rollout's.
  """
  shapes.check_shapes(
      log_ratio_BT=log_ratio_BT, advantage_BT=advantage_BT, mask_BT=mask_BT
  )
  return _clipped(
      jnp.where(mask_BT, log_ratio_BT, 0.0),
      advantage_BT,
      mask_BT,
      eps_low=gspo.eps_low,
      eps_high=gspo.eps_high,
      dual=None,
  )


def _clipped(
    log_ratio_BT, advantage_BT, mask_BT, *, eps_low, eps_high, dual
) -> PolicyTerms:
  ratio_BT = ratio.bounded_exp(log_ratio_BT)
  advantage_BT = jax.lax.stop_gradient(jnp.where(mask_BT, advantage_BT, 0.0))
  # A flag chooses the constant branch, so that a clipped token has gradient 0
  # by construction; where no flag is up, max() is the unclipped term (L2).
  high_BT = (advantage_BT > 0) & (ratio_BT > 1.0 + eps_high)
  low_BT = (advantage_BT < 0) & (ratio_BT < 1.0 - eps_low)
  loss_BT = -ratio_BT * advantage_BT
  loss_BT = jnp.where(high_BT, -(1.0 + eps_high) * advantage_BT, loss_BT)
  loss_BT = jnp.where(low_BT, -(1.0 - eps_low) * advantage_BT, loss_BT)
  nothing_BT = jnp.zeros(mask_BT.shape, bool)
  dual_BT = nothing_BT
  if dual is not None:
    bound_BT = -dual * advantage_BT
    dual_BT = (advantage_BT < 0) & (bound_BT < loss_BT)
    loss_BT = jnp.where(dual_BT, bound_BT, loss_BT)
  return PolicyTerms(
      loss_BT=jnp.where(mask_BT, loss_BT, 0.0),
      ratio_BT=ratio_BT,
      clip_high_BT=high_BT,
      clip_low_BT=low_BT,
      dual_BT=dual_BT,
      gated_BT=nothing_BT,
      saturated_BT=ratio.is_saturated(log_ratio_BT),
  )


def dis_loss(
    logp_BT: jax.Array,
    behaviour_logp_BT: jax.Array,
    advantage_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    dis: schema.DisConfig,
) -> PolicyTerms:
  """-f A log pi with f the ratio to the sampler, 0 out of range (SAO, L14).

  f is constant for the gradient, and an out-of-range token has none for
  either sign of A. The value is not an objective.

  Args:
    logp_BT: log-probability of each token under the trained parameters.
    behaviour_logp_BT: what the token was drawn with; constant.
    advantage_BT: advantage of the token; no gradient flows into it.
    mask_BT: True where the token is trained.
    dis: the range.

  Returns:
    Loss and flags of every token; `gated_BT` is the range.
  """
  ratio_BT, saturated_BT = _constant_ratio(logp_BT, behaviour_logp_BT, mask_BT)
  gated_BT = dis_gate(ratio_BT, dis=dis) & mask_BT
  return _weighted_log_likelihood(
      logp_BT,
      jnp.where(gated_BT, 0.0, ratio_BT),
      advantage_BT,
      mask_BT & ~gated_BT,
  )._replace(ratio_BT=ratio_BT, gated_BT=gated_BT, saturated_BT=saturated_BT)


def dis_gate(ratio_BT: jax.Array, *, dis: schema.DisConfig) -> jax.Array:
  """True where DIS drops the token: not 1 - eps_low < rho < 1 + eps_high.

  A ratio that is no number passes: it has to reach the loss (L18).
  """
  return (ratio_BT <= 1.0 - dis.eps_low) | (ratio_BT >= 1.0 + dis.eps_high)


def cispo_loss(
    logp_BT: jax.Array,
    base_logp_BT: jax.Array,
    advantage_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    cispo: schema.CispoConfig,
) -> PolicyTerms:
  """-min(rho, 1 + eps_high) A log pi, the weight constant (2506.13585).

  No token loses its gradient; `clip_high_BT` says where the weight was cut,
  whatever the sign of A.
  """
  ratio_BT, saturated_BT = _constant_ratio(logp_BT, base_logp_BT, mask_BT)
  terms = _weighted_log_likelihood(
      logp_BT,
      jnp.minimum(ratio_BT, 1.0 + cispo.eps_high),
      advantage_BT,
      mask_BT,
  )
  return terms._replace(
      ratio_BT=ratio_BT,
      clip_high_BT=(ratio_BT > 1.0 + cispo.eps_high) & mask_BT,
      saturated_BT=saturated_BT,
  )


def _constant_ratio(logp_BT, base_logp_BT, mask_BT):
  shapes.check_shapes(
      logp_BT=logp_BT, base_logp_BT=base_logp_BT, mask_BT=mask_BT
  )
  log_ratio_BT = jax.lax.stop_gradient(
      ratio.masked_difference(logp_BT, base_logp_BT, mask_BT)
  )
  return ratio.bounded_exp(log_ratio_BT), ratio.is_saturated(log_ratio_BT)


def _weighted_log_likelihood(logp_BT, factor_BT, advantage_BT, used_BT):
  """-factor A log pi where `used_BT`; elsewhere log pi is not even read."""
  shapes.check_shapes(
      logp_BT=logp_BT, advantage_BT=advantage_BT, used_BT=used_BT
  )
  clean_BT = jnp.where(used_BT, logp_BT, 0.0)
  advantage_BT = jax.lax.stop_gradient(jnp.where(used_BT, advantage_BT, 0.0))
  nothing_BT = jnp.zeros(used_BT.shape, bool)
  return PolicyTerms(
      loss_BT=jnp.where(used_BT, -factor_BT * advantage_BT * clean_BT, 0.0),
      ratio_BT=factor_BT,
      clip_high_BT=nothing_BT,
      clip_low_BT=nothing_BT,
      dual_BT=nothing_BT,
      gated_BT=nothing_BT,
      saturated_BT=nothing_BT,
  )
