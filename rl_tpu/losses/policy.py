"""PPO's clipped surrogate per token (L1 to L3)."""

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
    saturated_BT: the log ratio left [-20, 20].
  """

  loss_BT: jax.Array
  ratio_BT: jax.Array
  clip_high_BT: jax.Array
  clip_low_BT: jax.Array
  dual_BT: jax.Array
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
  base_logp_BT = jax.lax.stop_gradient(base_logp_BT)
  log_ratio_BT = ratio.masked_difference(logp_BT, base_logp_BT, mask_BT)
  ratio_BT = ratio.bounded_exp(log_ratio_BT)
  advantage_BT = jax.lax.stop_gradient(jnp.where(mask_BT, advantage_BT, 0.0))
  # A flag chooses the constant branch, so that a clipped token has gradient 0
  # by construction; where no flag is up, max() is the unclipped term (L2).
  high_BT = (advantage_BT > 0) & (ratio_BT > 1.0 + clip.eps_high)
  low_BT = (advantage_BT < 0) & (ratio_BT < 1.0 - clip.eps_low)
  loss_BT = -ratio_BT * advantage_BT
  loss_BT = jnp.where(high_BT, -(1.0 + clip.eps_high) * advantage_BT, loss_BT)
  loss_BT = jnp.where(low_BT, -(1.0 - clip.eps_low) * advantage_BT, loss_BT)
  dual_BT = jnp.zeros_like(high_BT)
  if clip.dual is not None:
    bound_BT = -clip.dual * advantage_BT
    dual_BT = (advantage_BT < 0) & (bound_BT < loss_BT)
    loss_BT = jnp.where(dual_BT, bound_BT, loss_BT)
  return PolicyTerms(
      loss_BT=jnp.where(mask_BT, loss_BT, 0.0),
      ratio_BT=ratio_BT,
      clip_high_BT=high_BT,
      clip_low_BT=low_BT,
      dual_BT=dual_BT,
      saturated_BT=ratio.is_saturated(log_ratio_BT),
  )
