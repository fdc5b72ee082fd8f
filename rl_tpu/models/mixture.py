"""Mixture of experts: the router's choice and the chosen experts' work.

Tokens are sorted by expert and every expert multiplies its own rows (a ragged
product), so that none is dropped for want of capacity and none is computed
for an expert that it did not take.
"""

from typing import NamedTuple

import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from rl_tpu.models import activations
from rl_tpu.models import config as config_lib


class Experts(NamedTuple):
  """Weights of one mixture layer.

  Attributes:
    router: [D, E] float32.
    bias: [E] float32, added to the scores for the choice; None for none.
    gate: [E, D, F].
    up: [E, D, F].
    down: [E, F, D].
  """

  router: jax.Array
  bias: jax.Array | None
  gate: jax.Array
  up: jax.Array
  down: jax.Array


def route(
    logit_NE: jax.Array,
    bias_E: jax.Array | None,
    config: config_lib.MixtureConfig,
) -> tuple[jax.Array, jax.Array]:
  """Experts of each token, and what their outputs are weighted with.

  Args:
    logit_NE: the router's float32 logits.
    bias_E: added to the scores for the choice only; no gradient flows to it.
    config: the mixture's settings.

  Returns:
    float32 weights and int32 experts, both [N, experts_per_token].
  """
  if config.router == 'softmax':
    score_NE = jax.nn.softmax(logit_NE, axis=-1)
  else:
    score_NE = jax.nn.sigmoid(logit_NE)
  choice_NE = jax.lax.stop_gradient(score_NE)
  if bias_E is not None:
    choice_NE = choice_NE + jax.lax.stop_gradient(bias_E)
  if config.groups_per_token < config.num_groups:
    choice_NE = _keep_groups(choice_NE, config)
  _, expert_NM = jax.lax.top_k(choice_NE, config.experts_per_token)
  weight_NM = jnp.take_along_axis(score_NE, expert_NM, axis=-1)
  if config.normalise:
    total = jnp.sum(weight_NM, axis=-1, keepdims=True)
    weight_NM = weight_NM / (total + 1e-20)
  return config.scale * weight_NM, expert_NM


def _keep_groups(choice_NE, config) -> jax.Array:
  """Masks the groups whose best two experts add up to less than others'."""
  N, E = choice_NE.shape
  grouped = choice_NE.reshape(N, config.num_groups, E // config.num_groups)
  best = jnp.sum(jax.lax.top_k(grouped, 2)[0], axis=-1)
  _, kept = jax.lax.top_k(best, config.groups_per_token)
  is_kept = jnp.any(
      kept[..., None] == jnp.arange(config.num_groups), axis=1
  )
  return jnp.where(is_kept[..., None], grouped, -jnp.inf).reshape(N, E)


def apply(
    experts: Experts, config: config_lib.DecoderConfig, x_ND: jax.Array
) -> jax.Array:
  """The weighted sum of each token's experts, [N, D]."""
  mixture = config.mixture
  logit_NE = x_ND.astype(jnp.float32) @ experts.router
  weight_NM, expert_NM = route(logit_NE, experts.bias, mixture)
  M = mixture.experts_per_token
  flat = expert_NM.reshape(-1)
  order = jnp.argsort(flat)  # Rows of expert 0, then of expert 1, ...
  size_E = jnp.bincount(flat, length=mixture.num_experts)
  product = lambda x, kernel: jax.lax.ragged_dot(
      x, kernel.astype(x.dtype), size_E
  )
  save = lambda x: ad_checkpoint.checkpoint_name(x, 'mlp')
  sorted_x = x_ND[order // M]
  gate = save(product(sorted_x, experts.gate))
  up = save(product(sorted_x, experts.up))
  active = activations.gated(gate, up, config.activation)
  out = product(active, experts.down)[jnp.argsort(order)]
  out_NMD = out.reshape(-1, M, out.shape[-1])
  weight_NM = weight_NM.astype(x_ND.dtype)
  return jnp.einsum('nmd,nm->nd', out_NMD, weight_NM)
