"""The critic as a classifier over bins of the return (C11, 2403.03950)."""

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.losses import value as value_lib
from rl_tpu.types import shapes


def histogram(
    target_BT: jax.Array, *, critic: schema.CriticConfig
) -> jax.Array:
  """A Gaussian around each target, integrated per bin, float32 [B, T, M].

  The target is clipped to [vmin, vmax] and the mass outside is left out, so
  that every histogram adds up to 1.
  """
  edges = jnp.linspace(critic.vmin, critic.vmax, critic.bins + 1)
  width = (critic.vmax - critic.vmin) / critic.bins
  centre_BT = jnp.clip(target_BT, critic.vmin, critic.vmax)
  scaled = (edges - centre_BT[..., None]) / (critic.sigma * width)
  below = jax.scipy.special.erf(scaled / jnp.sqrt(2.0))
  mass = below[..., 1:] - below[..., :-1]
  return mass / (below[..., -1:] - below[..., :1])


def loss(
    logits_BTM: jax.Array,
    value_BT: jax.Array,
    return_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    critic: schema.CriticConfig,
) -> value_lib.ValueTerms:
  """Cross entropy of the bins with the target's histogram.

  Args:
    logits_BTM: of the state before each token, under training.
    value_BT: their expected bin centre, for the error; constant here.
    return_BT: the target; constant.
    mask_BT: True where the critic is trained.
    critic: the bins.

  Returns:
    Loss and error of every token; `clipped_BT` says where the target was
    outside of the bins.
  """
  shapes.check_shapes(
      logits_BTM=logits_BTM,
      value_BT=value_BT,
      return_BT=return_BT,
      mask_BT=mask_BT,
  )
  stop = jax.lax.stop_gradient
  clean_BTM = jnp.where(mask_BT[..., None], logits_BTM, 0.0)
  target_BT = stop(jnp.where(mask_BT, return_BT, 0.0))
  value_BT = stop(jnp.where(mask_BT, value_BT, 0.0))
  wanted_BTM = histogram(target_BT, critic=critic)
  logp_BTM = jax.nn.log_softmax(clean_BTM.astype(jnp.float32), axis=-1)
  outside_BT = (target_BT < critic.vmin) | (target_BT > critic.vmax)
  return value_lib.ValueTerms(
      loss_BT=jnp.where(mask_BT, -jnp.sum(wanted_BTM * logp_BTM, -1), 0.0),
      error_BT=jnp.where(mask_BT, value_BT - target_BT, 0.0),
      clipped_BT=outside_BT & mask_BT,
  )
