"""A decoder's parameters laid out for decoding.

A decode step multiplies every matrix with a few columns only, so its speed is
that of reading weights: they are kept as [out, in], fused where inputs are
shared, one array per layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import rotary


class LayerWeights(NamedTuple):
  """One layer. Query heads are grouped by the key head that they read.

  Attributes:
    attention_norm: [D].
    qkv: [groups, queries + 2, K, D]: the group's queries, key and value.
    qkv_bias: [groups, queries + 2, K] or None.
    query_norm: [K] or None.
    key_norm: [K] or None.
    out: [D, H, K].
    mlp_norm: [D].
    gate_up: [2, F, D].
    down: [D, F].
  """

  attention_norm: jax.Array
  qkv: jax.Array
  qkv_bias: jax.Array | None
  query_norm: jax.Array | None
  key_norm: jax.Array | None
  out: jax.Array
  mlp_norm: jax.Array
  gate_up: jax.Array
  down: jax.Array


class Weights(NamedTuple):
  """A decoder's parameters laid out for decoding.

  Attributes:
    embed: [V, D].
    layers: one entry per layer.
    final_norm: [D].
    head: [V, D], or None where it is the embedding.
    cos: [max_length, K / 2], of the rotary angle at each position. A table:
      the compiler would compute the angles again in every layer and head.
    sin: the same of the sine.
  """

  embed: jax.Array
  layers: tuple[LayerWeights, ...]
  final_norm: jax.Array
  head: jax.Array | None
  cos: jax.Array
  sin: jax.Array


def arrange(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    *,
    dtype: str = 'float32',
) -> Weights:
  """Lays parameters out for decoding; norms stay float32."""
  cast = lambda x: x.astype(dtype)
  layers = tuple(
      _arrange_layer(
          jax.tree.map(lambda p: p[index], params['layers']), config, cast
      )
      for index in range(config.num_layers)
  )
  tied = config.tie_embeddings
  cos, sin = rotary.angles(jnp.arange(config.max_length), config)
  return Weights(
      embed=cast(params['embed']['embedding']),
      layers=layers,
      final_norm=params['final_norm']['scale'],
      head=None if tied else cast(params['lm_head']['kernel'].T),
      cos=cos,
      sin=sin,
  )


def _arrange_layer(layer, config, cast) -> LayerWeights:
  groups, size = config.num_kv_heads, config.head_width

  def fuse(name: str) -> jax.Array:
    """Puts the heads' axis first, grouped, and [K, ...] behind it."""
    parts = []
    for kind in ('query', 'key', 'value'):
      part = layer[kind][name]
      part = jnp.moveaxis(part, 0, -1) if part.ndim == 3 else part
      parts.append(part.reshape(groups, -1, *part.shape[1:]))
    return cast(jnp.concatenate(parts, axis=1))

  norm = lambda name: layer[name]['scale'] if config.qk_norm else None
  out = layer['out']['kernel'].reshape(config.num_heads, size, config.width)
  return LayerWeights(
      attention_norm=layer['attention_norm']['scale'],
      qkv=fuse('kernel'),
      qkv_bias=fuse('bias') if config.qkv_bias else None,
      query_norm=norm('query_norm'),
      key_norm=norm('key_norm'),
      out=cast(jnp.moveaxis(out, -1, 0)),
      mlp_norm=layer['mlp_norm']['scale'],
      gate_up=cast(
          jnp.stack([layer['gate']['kernel'].T, layer['up']['kernel'].T])
      ),
      down=cast(layer['down']['kernel'].T),
  )


def logical_axes(config: config_lib.DecoderConfig) -> Weights:
  """Logical names of every dimension, for `sharding.rules`."""
  biased, normed = config.qkv_bias, config.qk_norm
  layer = LayerWeights(
      attention_norm=('width',),
      qkv=('kv_heads', 'layer', 'head_width', 'width'),
      qkv_bias=('kv_heads', 'layer', 'head_width') if biased else None,
      query_norm=('head_width',) if normed else None,
      key_norm=('head_width',) if normed else None,
      out=('width', 'heads', 'head_width'),
      mlp_norm=('width',),
      gate_up=('layer', 'mlp', 'width'),
      down=('width', 'mlp'),
  )
  return Weights(
      embed=('vocab', 'width'),
      layers=(layer,) * config.num_layers,
      final_norm=('width',),
      head=None if config.tie_embeddings else ('vocab', 'width'),
      cos=('layer', 'head_width'),
      sin=('layer', 'head_width'),
  )
