"""The one decoder: pre-norm blocks of attention and a gated feed-forward.

The modules say which parameters exist and how they are used. Everybody else
sees pure functions over a nested dict of float32 arrays, in which the layers
are stacked on a leading axis L.
"""

import functools
import math
from typing import Any

from flax import nnx
import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import matrix
from rl_tpu.models import rotary
from rl_tpu.types import shapes

Params = dict[str, Any]
# Kept for the backward pass without remat: the results of matrix products.
SAVED = ('heads', 'middle', 'mlp', *attention.SAVED)
BACKBONE = ('embed', 'layers', 'final_norm')


def _param(rngs: nnx.Rngs, axes: tuple[str, ...], *shape: int, std: float):
  value = std * jax.random.normal(rngs.params(), shape, jnp.float32)
  return nnx.Param(value, axes=axes)


class Norm(nnx.Module):
  """RMSNorm, computed in float32."""

  def __init__(self, size: int, axis: str, eps: float):
    self.scale = nnx.Param(jnp.ones(size, jnp.float32), axes=(axis,))
    self.eps = eps

  def __call__(self, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    power = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    scaled = wide * jax.lax.rsqrt(power + self.eps) * self.scale[...]
    return scaled.astype(x.dtype)


class Heads(nnx.Module):
  """Projection of the residual stream to heads."""

  def __init__(
      self,
      config: config_lib.DecoderConfig,
      heads: int,
      axis: str,
      rngs: nnx.Rngs,
  ):
    width, size = config.width, config.head_width
    self.kernel = _param(
        rngs,
        ('width', axis, 'head_width'),
        *(width, heads, size),
        std=1.0 / math.sqrt(width),
    )
    self.bias = nnx.data(None)
    if config.qkv_bias:
      zeros = jnp.zeros((heads, size), jnp.float32)
      self.bias = nnx.Param(zeros, axes=(axis, 'head_width'))

  def __call__(self, x: jax.Array) -> jax.Array:
    width, heads, size = self.kernel.shape
    flat = self.kernel[...].astype(x.dtype).reshape(width, heads * size)
    out = matrix.product(x, flat).reshape(*x.shape[:-1], heads, size)
    return out if self.bias is None else out + self.bias[...].astype(x.dtype)


class Dense(nnx.Module):
  """A matrix without bias."""

  def __init__(
      self,
      axes: tuple[str, str],
      shape: tuple[int, int],
      rngs: nnx.Rngs,
      scale: float = 1.0,
  ):
    std = scale / math.sqrt(shape[0])
    self.kernel = _param(rngs, axes, *shape, std=std)

  def __call__(self, x: jax.Array) -> jax.Array:
    return matrix.product(x, self.kernel[...].astype(x.dtype))


class Block(nnx.Module):
  """One layer, in the two steps around its attention."""

  def __init__(self, config: config_lib.DecoderConfig, rngs: nnx.Rngs):
    width, size = config.width, config.head_width
    self.config = config
    self.attention_norm = Norm(width, 'width', config.norm_eps)
    self.query = Heads(config, config.num_heads, 'heads', rngs)
    self.key = Heads(config, config.num_kv_heads, 'kv_heads', rngs)
    self.value = Heads(config, config.num_kv_heads, 'kv_heads', rngs)
    self.query_norm = self.key_norm = nnx.data(None)
    if config.qk_norm:
      self.query_norm = Norm(size, 'head_width', config.norm_eps)
      self.key_norm = Norm(size, 'head_width', config.norm_eps)
    # The residual stream adds 2L outputs: their variance should not grow.
    scale = 1.0 / math.sqrt(2.0 * config.num_layers)
    self.out = Output(config, scale, rngs)
    self.mlp_norm = Norm(width, 'width', config.norm_eps)
    wide = (width, config.mlp_width)
    self.gate = Dense(('width', 'mlp'), wide, rngs)
    self.up = Dense(('width', 'mlp'), wide, rngs)
    self.down = Dense(('mlp', 'width'), wide[::-1], rngs, scale)

  def project(
      self, x: jax.Array, cos: jax.Array, sin: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rotated queries and keys, and values, of x [..., D]."""
    x = self.attention_norm(x)
    query, key, value = self.query(x), self.key(x), self.value(x)
    if self.query_norm is not None:
      query, key = self.query_norm(query), self.key_norm(key)
    query = rotary.rotate(query, cos, sin)
    key = rotary.rotate(key, cos, sin)
    save = lambda heads: ad_checkpoint.checkpoint_name(heads, 'heads')
    return save(query), save(key), save(value)

  def merge(self, x: jax.Array, attended: jax.Array) -> jax.Array:
    """Adds the attention output [..., H, K] and the feed-forward layer."""
    x = ad_checkpoint.checkpoint_name(x + self.out(attended), 'middle')
    inner = self.mlp_norm(x)
    gate = ad_checkpoint.checkpoint_name(self.gate(inner), 'mlp')
    up = ad_checkpoint.checkpoint_name(self.up(inner), 'mlp')
    return x + self.down(activation(gate, self.config.activation) * up)


class Output(nnx.Module):
  """Projection of the heads back to the residual stream."""

  def __init__(
      self, config: config_lib.DecoderConfig, scale: float, rngs: nnx.Rngs
  ):
    heads, size = config.num_heads, config.head_width
    self.kernel = _param(
        rngs,
        ('heads', 'head_width', 'width'),
        *(heads, size, config.width),
        std=scale / math.sqrt(heads * size),
    )

  def __call__(self, attended: jax.Array) -> jax.Array:
    heads, size, width = self.kernel.shape
    kernel = self.kernel[...].astype(attended.dtype)
    flat = attended.reshape(*attended.shape[:-2], heads * size)
    return matrix.product(flat, kernel.reshape(heads * size, width))


class Embedding(nnx.Module):
  """Token table."""

  def __init__(self, config: config_lib.DecoderConfig, rngs: nnx.Rngs):
    self.embedding = _param(
        rngs,
        ('vocab', 'width'),
        *(config.vocab_size, config.width),
        std=1.0 / math.sqrt(config.width),
    )


class Decoder(nnx.Module):
  """Embedding, stacked layers, final norm and, unless tied, the head."""

  def __init__(self, config: config_lib.DecoderConfig, rngs: nnx.Rngs):
    self.embed = Embedding(config, rngs)
    stack = nnx.split_rngs(splits=config.num_layers)(
        nnx.vmap(lambda rngs: Block(config, rngs))
    )
    self.layers = stack(rngs)
    self.final_norm = Norm(config.width, 'width', config.norm_eps)
    if not config.tie_embeddings:
      self.lm_head = Dense(
          ('width', 'vocab'), (config.width, config.vocab_size), rngs
      )


def activation(x: jax.Array, kind: str) -> jax.Array:
  """The gate's non-linearity."""
  if kind == 'relu':
    return jax.nn.relu(x)
  return jax.nn.silu(x) if kind == 'silu' else jax.nn.gelu(x, approximate=True)


def init_params(config: config_lib.DecoderConfig, key: jax.Array) -> Params:
  """New parameters: normal, scaled by fan-in."""
  module = Decoder(config, nnx.Rngs(params=key))
  return nnx.to_pure_dict(nnx.state(module, nnx.Param))


@functools.lru_cache(maxsize=32)
def _abstract(config: config_lib.DecoderConfig) -> tuple[Any, Any]:
  """Structure and abstract state of the decoder's modules."""
  module = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(params=0)))
  return nnx.split(module, nnx.Param)


@functools.lru_cache(maxsize=32)
def block_graph(config: config_lib.DecoderConfig) -> Any:
  """Structure of one layer, to merge with its parameters."""
  module = nnx.eval_shape(lambda: Block(config, nnx.Rngs(params=0)))
  return nnx.split(module, nnx.Param)[0]


def logical_axes(config: config_lib.DecoderConfig) -> Params:
  """Names of every parameter's dimensions, for `sharding.rules`."""
  state = _abstract(config)[1]
  is_leaf = lambda x: isinstance(x, nnx.Variable)
  axes = jax.tree.map(
      lambda p: p.get_metadata()['axes'], state, is_leaf=is_leaf
  )
  axes = nnx.to_pure_dict(axes)
  axes['layers'] = jax.tree.map(
      lambda names: ('layer', *names),
      axes['layers'],
      is_leaf=lambda x: isinstance(x, tuple),
  )
  return axes


def shapes_of(config: config_lib.DecoderConfig) -> Params:
  """Shape and dtype of every parameter, nothing allocated."""
  return nnx.to_pure_dict(_abstract(config)[1])


def embed(params: Params, token: jax.Array, dtype: str) -> jax.Array:
  """Rows of the token table for ids of any shape."""
  return jnp.take(params['embed']['embedding'], token, axis=0).astype(dtype)


def final_norm(
    params: Params, config: config_lib.DecoderConfig, x: jax.Array
) -> jax.Array:
  """The norm that the output layer and the value head read."""
  graph = _norm_graph(config)
  return nnx.merge(graph, params['final_norm'])(x)


@functools.lru_cache(maxsize=32)
def _norm_graph(config: config_lib.DecoderConfig) -> Any:
  module = nnx.eval_shape(
      lambda: Norm(config.width, 'width', config.norm_eps)
  )
  return nnx.split(module, nnx.Param)[0]


def hidden(
    params: Params,
    config: config_lib.DecoderConfig,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    *,
    dtype: str = 'float32',
    remat: bool = False,
) -> jax.Array:
  """Normed hidden state of every position.

  Args:
    params: the decoder's parameters; an output layer in them is not read.
    config: the decoder's settings.
    token_BT: token ids, valid ids in padding too.
    position_BT: position inside the segment.
    segment_BT: segment id, -1 in padding; attention stays inside one id (P1).
    dtype: dtype of the activations.
    remat: keep only the layers' inputs for the backward pass.

  Returns:
    hidden_BTD in `dtype`: at q it has read x_0..x_q of its segment.
  """
  shapes.check_shapes(
      token_BT=token_BT, position_BT=position_BT, segment_BT=segment_BT
  )
  B, T = token_BT.shape
  # Matrices see one axis of tokens (B times T): with two, the compiler would
  # transpose wide arrays for their gradients.
  cos, sin = rotary.angles(position_BT.reshape(-1), config)
  graph = block_graph(config)

  def layer(x_TD, layer_params):
    block = nnx.merge(graph, layer_params)
    query, key, value = block.project(x_TD, cos, sin)
    split = lambda x: x.reshape(B, T, *x.shape[1:])
    attended = attention.packed(
        split(query), split(key), split(value), segment_BT
    )
    return block.merge(x_TD, attended.reshape(query.shape)), None

  policies = jax.checkpoint_policies
  policy = policies.save_only_these_names(*SAVED) if not remat else None
  layer = jax.checkpoint(layer, prevent_cse=False, policy=policy)
  x_TD = embed(params, token_BT.reshape(-1), dtype)
  x_TD, _ = jax.lax.scan(layer, x_TD, params['layers'])
  return final_norm(params, config, x_TD).reshape(B, T, -1)
