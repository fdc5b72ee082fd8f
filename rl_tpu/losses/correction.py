"""Weights for the gap between sampler and update baseline (L13).

With `policy.baseline = decoupled` the ratio starts from recomputed log-probs;
rho_b = pi_old / mu says how far the sampler was from them. All weights are
constants for the gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.losses import ratio
from rl_tpu.types import shapes

KINDS = ('none', 'tis', 'icepop', 'mis', 'seq_mis')
# These can drop a token's term (L10).
GATES = ('icepop', 'mis', 'seq_mis')


class Correction(NamedTuple):
  """Weight on the policy term of every token; 1 and False off the mask.

  Attributes:
    weight_BT: factor on the term; 0 where it is gated.
    gated_BT: the term is dropped (L10).
  """

  weight_BT: jax.Array
  gated_BT: jax.Array


def log_gap(
    base_logp_BT: jax.Array, behaviour_logp_BT: jax.Array, mask_BT: jax.Array
) -> jax.Array:
  """log rho_b = log pi_old - log mu where trained, else 0; constant."""
  shapes.check_shapes(
      base_logp_BT=base_logp_BT,
      behaviour_logp_BT=behaviour_logp_BT,
      mask_BT=mask_BT,
  )
  return jax.lax.stop_gradient(
      ratio.masked_difference(base_logp_BT, behaviour_logp_BT, mask_BT)
  )


def weigh(
    log_gap_BT: jax.Array, mask_BT: jax.Array, *, policy: schema.PolicyConfig
) -> Correction:
  """The weight of `policy.correction`.

  Args:
    log_gap_BT: log rho_b of each token; for seq_mis its mean over the tokens
      of the token's rollout.
    mask_BT: True where the token is trained.
    policy: the kind and its bounds.

  Raises:
    ValueError: a correction that does not exist.
  """
  if policy.correction not in KINDS:
    raise ValueError(
        f'policy.correction must be one of {", ".join(KINDS)}, got'
        f' {policy.correction!r}.'
    )
  gap_BT = ratio.bounded_exp(jnp.where(mask_BT, log_gap_BT, 0.0))
  outside_BT = (gap_BT < policy.is_low) | (gap_BT > policy.is_high)
  nothing_BT = jnp.zeros(mask_BT.shape, bool)
  gated_BT = outside_BT if policy.correction in GATES else nothing_BT
  weight_BT = jnp.ones_like(gap_BT)
  if policy.correction == 'tis':
    weight_BT = jnp.minimum(gap_BT, policy.is_high)
  elif policy.correction == 'icepop':
    weight_BT = gap_BT
  weight_BT = jnp.where(gated_BT, 0.0, weight_BT)
  return Correction(
      weight_BT=jnp.where(mask_BT, weight_BT, 1.0),
      gated_BT=gated_BT & mask_BT,
  )
