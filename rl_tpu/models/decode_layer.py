"""One layer of a decode step, on the weights of `arranged`.

Activations are columns, [D, N] for N tokens.
"""

import math

import jax
import jax.numpy as jnp

from rl_tpu.models import activations
from rl_tpu.models import arranged
from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import mixture
from rl_tpu.models import rotary


def norm(x: jax.Array, scale: jax.Array, config) -> jax.Array:
  """`blocks.Norm` over axis -2."""
  wide = x.astype(jnp.float32)
  power = jnp.mean(jnp.square(wide), axis=-2, keepdims=True)
  scaled = wide * jax.lax.rsqrt(power + config.norm_eps) * scale[:, None]
  return scaled.astype(x.dtype)


def project(layer: arranged.LayerWeights, config, x, rotation):
  """Queries [groups, queries, K, N], and key and value with one head each."""
  x = norm(x, layer.attention_norm, config)
  qkv = jnp.einsum('grkd,dn->grkn', layer.qkv, x)
  if layer.qkv_bias is not None:
    qkv = qkv + layer.qkv_bias[..., None]
  query, key, value = qkv[:, :-2], qkv[:, -2:-1], qkv[:, -1:]
  if layer.query_norm is not None:
    query = norm(query, layer.query_norm, config)
    key = norm(key, layer.key_norm, config)
  turn = lambda heads: rotary.rotate(
      heads, *rotation, axis=-2, interleaved=config.rotary_interleaved
  )
  return turn(query), turn(key), value


def merge(
    layer: arranged.LayerWeights, config, x, attended, mesh
) -> jax.Array:
  """Adds the attention output, columns of H times K, and the MLP."""
  added = layer.out.reshape(config.width, -1) @ attended
  if layer.attention_post_norm is not None:
    added = norm(added, layer.attention_post_norm, config)
  x = x + added
  inner = norm(x, layer.mlp_norm, config)
  added = _feed_forward(layer, config, inner, mesh)
  if layer.mlp_post_norm is not None:
    added = norm(added, layer.mlp_post_norm, config)
  return x + added


def _feed_forward(layer: arranged.LayerWeights, config, inner, mesh):
  parts = []
  if layer.experts is not None and mesh is None:
    parts.append(mixture.apply(layer.experts, config, inner.T)[0].T)
  elif layer.experts is not None:
    out_ND = mixture.apply_on_shard(layer.experts, config, inner.T, mesh)
    parts.append(out_ND.T)
  if layer.down is not None:
    gate_FN, up_FN = jnp.einsum('cfd,dn->cfn', layer.gate_up, inner)
    active_FN = activations.gated(gate_FN, up_FN, config.activation)
    parts.append(layer.down @ active_FN)
  return sum(parts[1:], parts[0])


def attend(
    query_SHTK: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    visible: jax.Array,
    config: config_lib.DecoderConfig,
) -> jax.Array:
  """Attention of T queries a slot to what `visible` shows it of the cache."""
  S, H, T, K = query_SHTK.shape
  groups = keys.shape[1]
  query = query_SHTK.reshape(S, groups, H // groups * T, K)
  scale = 1.0 / math.sqrt(config.query_scalar or K)
  query = query * jnp.asarray(scale, query.dtype)
  score = jnp.einsum(
      'sgqk,sgck->sgqc', query, keys, preferred_element_type=jnp.float32
  )
  score = attention.cap(score, config.attention_softcap)
  score = score.reshape(S, H, T, -1)
  score = jnp.where(visible[:, None], score, attention.MASKED)
  weight = jax.nn.softmax(score, axis=-1).astype(values.dtype)
  weight = weight.reshape(S, groups, H // groups * T, -1)
  out = jnp.einsum('sgqc,sgck->sgqk', weight, values)
  return out.reshape(S, H, T, K)
