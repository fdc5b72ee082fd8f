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
from rl_tpu.models import lora
from rl_tpu.models import mixture
from rl_tpu.models import rotary


_WIDE = ('gate', 'up')


class LayerWeights(NamedTuple):
  """One layer. Query heads are grouped by the key head that they read.

  Attributes:
    attention_norm: [D]. Norms are what is multiplied with, not an offset.
    qkv: [groups, queries + 2, K, D]: the group's queries, key and value.
    qkv_bias: [groups, queries + 2, K] or None.
    query_norm: [K] or None.
    key_norm: [K] or None.
    out: [D, H, K].
    attention_post_norm: [D] or None.
    mlp_norm: [D].
    mlp_post_norm: [D] or None.
    gate_up: [2, F, D]; in a layer of experts that of the part which every
      token takes, or None.
    down: [D, F] alike.
    experts: of a layer that has them, or None.
  """

  attention_norm: jax.Array
  qkv: jax.Array
  qkv_bias: jax.Array | None
  query_norm: jax.Array | None
  key_norm: jax.Array | None
  out: jax.Array
  attention_post_norm: jax.Array | None
  mlp_norm: jax.Array
  mlp_post_norm: jax.Array | None
  gate_up: jax.Array | None
  down: jax.Array | None
  experts: mixture.Experts | None


class Weights(NamedTuple):
  """A decoder's parameters laid out for decoding.

  Attributes:
    embed: [V, D].
    layers: one entry per layer.
    final_norm: [D].
    head: [V, D], or None where it is the embedding.
    rotation: cosines and sines [max_length, pairs] of the rotary angle at
      each position. A table: the compiler would compute the angles again in
      every layer and head.
    local_rotation: that of the local layers; None where it is the same.
  """

  embed: jax.Array
  layers: tuple[LayerWeights, ...]
  final_norm: jax.Array
  head: jax.Array | None
  rotation: tuple[jax.Array, jax.Array]
  local_rotation: tuple[jax.Array, jax.Array] | None


def arrange(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    *,
    dtype: str = 'float32',
) -> Weights:
  """Lays parameters out for decoding; norms stay float32.

  Adapters are merged into the matrices that they belong to.

  Args:
    params: the trainer's.
    config: the decoder's settings. Its `num_kv_heads` may be a multiple of
      the parameters': each key head is there as often.
    dtype: of the matrices.
  """
  if config.lora is not None:
    params = lora.merge(params, config.lora)
  cast = lambda x: x.astype(dtype)
  layers = tuple(
      _arrange_layer(
          jax.tree.map(lambda p: p[index], params[name]), config, cast
      )
      for name, numbers in decoder.stacks(config).items()
      for index in range(len(numbers))
  )
  tied = config.tie_embeddings
  position = jnp.arange(config.max_length)
  local = None
  if config.local_rope_theta is not None:
    local = rotary.angles(position, config, local=True)
  return Weights(
      embed=cast(params['embed']['embedding']),
      layers=layers,
      final_norm=_norm(params, 'final_norm', config),
      head=None if tied else cast(params['lm_head']['kernel'].T),
      rotation=rotary.angles(position, config),
      local_rotation=local,
  )


def _arrange_layer(layer, config, cast) -> LayerWeights:
  groups, size = config.num_kv_heads, config.head_width

  def fuse(name: str) -> jax.Array:
    """Puts the heads' axis first, grouped, and [K, ...] behind it."""
    parts = []
    for kind in ('query', 'key', 'value'):
      part = layer[kind][name]
      part = jnp.moveaxis(part, 0, -1) if part.ndim == 3 else part
      if kind != 'query':
        part = jnp.repeat(part, groups // len(part), axis=0)
      parts.append(part.reshape(groups, -1, *part.shape[1:]))
    return cast(jnp.concatenate(parts, axis=1))

  norm = lambda name: _norm(layer, name, config)
  out = layer['out']['kernel'].reshape(config.num_heads, size, config.width)
  is_sparse = 'mixture' in layer
  plain = layer['mixture'].get('shared') if is_sparse else layer
  gate_up = down = None
  if plain is not None:
    gate_up = cast(jnp.stack([plain[name]['kernel'].T for name in _WIDE]))
    down = cast(plain['down']['kernel'].T)
  return LayerWeights(
      attention_norm=norm('attention_norm'),
      qkv=fuse('kernel'),
      qkv_bias=fuse('bias') if config.qkv_bias else None,
      query_norm=norm('query_norm'),
      key_norm=norm('key_norm'),
      out=cast(jnp.moveaxis(out, -1, 0)),
      attention_post_norm=norm('attention_post_norm'),
      mlp_norm=norm('mlp_norm'),
      mlp_post_norm=norm('mlp_post_norm'),
      gate_up=gate_up,
      down=down,
      experts=_experts(layer['mixture'], cast) if is_sparse else None,
  )


def _norm(tree, name: str, config) -> jax.Array | None:
  """What a norm multiplies with; None where there is none."""
  if name not in tree:
    return None
  scale = tree[name]['scale']
  return 1.0 + scale if config.norm_offset else scale


def _experts(layer, cast) -> mixture.Experts:
  return mixture.Experts(
      router=layer['router']['kernel'],
      bias=layer['router'].get('bias'),
      gate=cast(layer['gate']['kernel']),
      up=cast(layer['up']['kernel']),
      down=cast(layer['down']['kernel']),
  )


def logical_axes(config: config_lib.DecoderConfig) -> Weights:
  """Logical names of every dimension, for `sharding.rules`."""
  table = (('layer', 'head_width'),) * 2
  has_local = config.local_rope_theta is not None
  return Weights(
      embed=('vocab', 'width'),
      layers=tuple(
          _layer_axes(config, decoder.is_mixture(config, name))
          for name, numbers in decoder.stacks(config).items()
          for _ in numbers
      ),
      final_norm=('width',),
      head=None if config.tie_embeddings else ('vocab', 'width'),
      rotation=table,
      local_rotation=table if has_local else None,
  )


def _layer_axes(config, is_sparse: bool) -> LayerWeights:
  unless = lambda has, axes: axes if has else None
  has_bias = is_sparse and config.mixture.router == 'sigmoid'
  is_plain = not is_sparse or config.mixture.shared_width > 0
  experts = mixture.Experts(
      router=('width', 'router'),
      bias=unless(has_bias, ('router',)),
      gate=mixture.WIDE,
      up=mixture.WIDE,
      down=mixture.NARROW,
  )
  return LayerWeights(
      attention_norm=('width',),
      qkv=('kv_heads', 'layer', 'head_width', 'width'),
      qkv_bias=unless(config.qkv_bias, ('kv_heads', 'layer', 'head_width')),
      query_norm=unless(config.qk_norm, ('head_width',)),
      key_norm=unless(config.qk_norm, ('head_width',)),
      out=('width', 'heads', 'head_width'),
      attention_post_norm=unless(config.post_norms, ('width',)),
      mlp_norm=('width',),
      mlp_post_norm=unless(config.post_norms, ('width',)),
      gate_up=unless(is_plain, ('layer', 'mlp', 'width')),
      down=unless(is_plain, ('width', 'mlp')),
      experts=unless(is_sparse, experts),
  )
