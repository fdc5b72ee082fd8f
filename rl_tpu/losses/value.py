"""The critic's loss per token (L4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.types import shapes


class ValueTerms(NamedTuple):
  """Per-token loss and flags; 0 and False off the mask.

  Attributes:
    loss_BT: the loss of each token, without any weight.
    error_BT: value - target.
    clipped_BT: the value clip holds: no gradient.
  """

  loss_BT: jax.Array
  error_BT: jax.Array
  clipped_BT: jax.Array


def value_loss(
    value_BT: jax.Array,
    old_value_BT: jax.Array,
    return_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    value_clip: float | None,
) -> ValueTerms:
  """0.5 (v - R)^2, optionally clipped around the value of the recursion.

  Args:
    value_BT: value of the state before each token, under training.
    old_value_BT: the same when the targets were made (G13); constant.
    return_BT: the target; constant.
    mask_BT: True where the critic is trained.
    value_clip: largest move that keeps its gradient; None is off.

  Returns:
    Loss and flags of every token.
  """
  shapes.check_shapes(
      value_BT=value_BT,
      old_value_BT=old_value_BT,
      return_BT=return_BT,
      mask_BT=mask_BT,
  )
  value_BT = jnp.where(mask_BT, value_BT, 0.0).astype(jnp.float32)
  old_BT = jax.lax.stop_gradient(jnp.where(mask_BT, old_value_BT, 0.0))
  target_BT = jax.lax.stop_gradient(jnp.where(mask_BT, return_BT, 0.0))
  error_BT = value_BT - target_BT
  loss_BT = 0.5 * jnp.square(error_BT)
  clipped_BT = jnp.zeros(mask_BT.shape, bool)
  if value_clip is not None:
    move_BT = jax.lax.stop_gradient(value_BT) - old_BT
    bound_BT = old_BT + jnp.clip(move_BT, -value_clip, value_clip)
    bound_loss_BT = 0.5 * jnp.square(bound_BT - target_BT)
    # The squares are compared only beyond the bound: inside it, rounding of
    # old + (v - old) would decide (L4).
    clipped_BT = (jnp.abs(move_BT) > value_clip) & (
        bound_loss_BT > jax.lax.stop_gradient(loss_BT)
    )
    loss_BT = jnp.where(clipped_BT, bound_loss_BT, loss_BT)
  return ValueTerms(
      loss_BT=jnp.where(mask_BT, loss_BT, 0.0),
      error_BT=error_BT,
      clipped_BT=clipped_BT & mask_BT,
  )
