"""Log ratios and their exponentials (section 4).

A log ratio is clipped to [-20, 20] only inside exp, and the gradient through
that exp is 0 beyond. A clip after exp would leave NaN in the gradient (K18).
"""

import jax
import jax.numpy as jnp

LIMIT = 20.0


def masked_difference(
    logp_BT: jax.Array, other_logp_BT: jax.Array, mask_BT: jax.Array
) -> jax.Array:
  """logp - other where `mask_BT`, else 0; NaN and inf there reach nothing.

  Both are replaced before the subtraction: inf - inf under a mask would be
  finite forwards and NaN backwards (G15).
  """
  clean_BT = jnp.where(mask_BT, logp_BT, 0.0)
  return clean_BT - jnp.where(mask_BT, other_logp_BT, 0.0)


def bounded_exp(log_ratio_BT: jax.Array) -> jax.Array:
  """exp of the log ratio clipped to [-20, 20]; gradient 0 beyond."""
  return _bounded(jnp.exp, log_ratio_BT)


def bounded_expm1(log_ratio_BT: jax.Array) -> jax.Array:
  """exp - 1 of the same, exact near 0, where exp - 1 would cancel."""
  return _bounded(jnp.expm1, log_ratio_BT)


def _bounded(function, log_ratio_BT: jax.Array) -> jax.Array:
  inside_BT = jnp.abs(log_ratio_BT) <= LIMIT
  moving_BT = function(jnp.where(inside_BT, log_ratio_BT, 0.0))
  fixed_BT = function(
      jnp.clip(jax.lax.stop_gradient(log_ratio_BT), -LIMIT, LIMIT)
  )
  return jnp.where(inside_BT, moving_BT, fixed_BT)


def is_saturated(log_ratio_BT: jax.Array) -> jax.Array:
  """True where exp was cut off (`ratio/saturated`, L21)."""
  return jnp.abs(log_ratio_BT) > LIMIT
