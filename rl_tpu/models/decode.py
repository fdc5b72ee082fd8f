"""Decoding with a key-value cache: prefill, single steps, logits.

The same layers as `decoder`, on weights laid out for decoding. A decode step
multiplies every matrix with a few columns only, so its speed is that of
reading weights: they are kept as [out, in], fused where inputs are shared,
one array per layer, and activations are columns, [D, N] for N tokens.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import attention
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
  """

  embed: jax.Array
  layers: tuple[LayerWeights, ...]
  final_norm: jax.Array
  head: jax.Array | None


class Cache(NamedTuple):
  """Keys and values of every layer; each array is [S, H, T, K].

  The slot is axis 0 of every leaf. H counts key heads.
  """

  key: tuple[jax.Array, ...]
  value: tuple[jax.Array, ...]


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
  return Weights(
      embed=cast(params['embed']['embedding']),
      layers=layers,
      final_norm=params['final_norm']['scale'],
      head=None if tied else cast(params['lm_head']['kernel'].T),
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


def weight_axes(config: config_lib.DecoderConfig) -> Weights:
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
  )


def init_cache(
    config: config_lib.DecoderConfig,
    slots: int,
    length: int,
    dtype: str = 'float32',
) -> Cache:
  """An empty cache for `slots` sequences of at most `length` tokens."""
  shape = (slots, config.num_kv_heads, length, config.head_width)
  layers = range(config.num_layers)
  return Cache(
      key=tuple(jnp.zeros(shape, dtype) for _ in layers),
      value=tuple(jnp.zeros(shape, dtype) for _ in layers),
  )


def prefill(
    weights: Weights,
    config: config_lib.DecoderConfig,
    token_ST: jax.Array,
    length_S: jax.Array,
) -> Cache:
  """Reads prompts padded on the right.

  Args:
    weights: the arranged parameters.
    config: the decoder's settings.
    token_ST: prompts; any valid id after the prompt.
    length_S: tokens of each prompt.

  Returns:
    A cache of T positions. What it holds after a prompt's end is overwritten
    by `step` before it is read. There are no logits: the first step feeds the
    last prompt token again, which leaves the cache as it is.
  """
  S, T = token_ST.shape
  position_ST = jnp.broadcast_to(jnp.arange(T), (S, T))
  segment_ST = jnp.where(position_ST < length_S[:, None], 0, -1)
  rotation = _rotation(position_ST.reshape(-1), config)
  rows = lambda x: x.reshape(-1, config.head_width, S, T).transpose(2, 3, 0, 1)
  x_DN = weights.embed[token_ST.reshape(-1)].T
  keys, values = [], []
  for index, layer in enumerate(weights.layers):
    query, key, value = map(rows, _project(layer, config, x_DN, rotation))
    keys.append(jnp.swapaxes(key, 1, 2))
    values.append(jnp.swapaxes(value, 1, 2))
    if index + 1 < config.num_layers:
      attended_STHK = attention.packed(query, key, value, segment_ST)
      columns = attended_STHK.reshape(S * T, -1).T
      x_DN = _merge(layer, config, x_DN, columns)
  return Cache(key=tuple(keys), value=tuple(values))


def step(
    weights: Weights,
    config: config_lib.DecoderConfig,
    token_S: jax.Array,
    position_S: jax.Array,
    cache: Cache,
) -> tuple[jax.Array, Cache]:
  """Feeds one token to every slot.

  Args:
    weights: the arranged parameters.
    config: the decoder's settings.
    token_S: the token of each slot.
    position_S: its position, which is where the cache is written.
    cache: donate it, or every step copies it.

  Returns:
    The normed hidden state after the token, [D, S], and the cache.
  """
  S = token_S.shape[0]
  rotation = _rotation(position_S, config)
  visible_ST = jnp.arange(cache.key[0].shape[2]) <= position_S[:, None]
  rows = lambda x: x.reshape(-1, config.head_width, S).transpose(2, 0, 1)
  x_DS = weights.embed[token_S].T
  keys, values = [], []
  for index, layer in enumerate(weights.layers):
    query, key, value = map(rows, _project(layer, config, x_DS, rotation))
    keys.append(_write(cache.key[index], key, position_S))
    values.append(_write(cache.value[index], value, position_S))
    attended_SHK = _attend(query, keys[-1], values[-1], visible_ST)
    x_DS = _merge(layer, config, x_DS, attended_SHK.reshape(S, -1).T)
  hidden_DS = _norm(x_DS, weights.final_norm, config)
  return hidden_DS, Cache(key=tuple(keys), value=tuple(values))


def logits(
    weights: Weights,
    config: config_lib.DecoderConfig,
    hidden_DS: jax.Array,
) -> jax.Array:
  """float32 logits [V, S]; -inf where a row has no token (K22)."""
  head = weights.embed if weights.head is None else weights.head
  out_VS = jnp.matmul(head, hidden_DS, preferred_element_type=jnp.float32)
  usable = config.usable_vocab
  if usable is None or usable == config.vocab_size:
    return out_VS
  has_token_V = jnp.arange(config.vocab_size) < usable
  return jnp.where(has_token_V[:, None], out_VS, -jnp.inf)


def _rotation(position_N, config) -> tuple[jax.Array, jax.Array]:
  cos, sin = rotary.angles(position_N, config)
  return cos.T, sin.T


def _rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
  """`rotary.rotate` for [..., K, N]."""
  cos, sin = rotation
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-2)
  rotated = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-2
  )
  return rotated.astype(x.dtype)


def _norm(x: jax.Array, scale: jax.Array, config) -> jax.Array:
  """`decoder.Norm` over axis -2."""
  wide = x.astype(jnp.float32)
  power = jnp.mean(jnp.square(wide), axis=-2, keepdims=True)
  scaled = wide * jax.lax.rsqrt(power + config.norm_eps) * scale[:, None]
  return scaled.astype(x.dtype)


def _project(layer: LayerWeights, config, x_DN, rotation):
  """Queries [groups, queries, K, N], and key and value with one head each."""
  x_DN = _norm(x_DN, layer.attention_norm, config)
  qkv = jnp.einsum('grkd,dn->grkn', layer.qkv, x_DN)
  if layer.qkv_bias is not None:
    qkv = qkv + layer.qkv_bias[..., None]
  query, key, value = qkv[:, :-2], qkv[:, -2:-1], qkv[:, -1:]
  if layer.query_norm is not None:
    query = _norm(query, layer.query_norm, config)
    key = _norm(key, layer.key_norm, config)
  return _rotate(query, rotation), _rotate(key, rotation), value


def _merge(layer: LayerWeights, config, x_DN, attended) -> jax.Array:
  """Adds the attention output, columns of H times K, and the MLP."""
  out = layer.out.reshape(config.width, -1)
  x_DN = x_DN + out @ attended
  inner = _norm(x_DN, layer.mlp_norm, config)
  gate_FN, up_FN = jnp.einsum('cfd,dn->cfn', layer.gate_up, inner)
  active_FN = decoder.activation(gate_FN, config.activation) * up_FN
  return x_DN + layer.down @ active_FN


def _write(
    cache_SHTK: jax.Array, new_SHK: jax.Array, position_S: jax.Array
) -> jax.Array:
  """Writes one position a slot.

  A scatter over slots and positions would gather the slots on every device.
  """
  put = lambda row, new, position: jax.lax.dynamic_update_slice(
      row, new[:, None], (0, position, 0)
  )
  return jax.vmap(put)(cache_SHTK, new_SHK, position_S)


def _attend(
    query_SHK: jax.Array,
    key_SHTK: jax.Array,
    value_SHTK: jax.Array,
    visible_ST: jax.Array,
) -> jax.Array:
  """Attention of one query a slot."""
  S, H, K = query_SHK.shape
  groups = key_SHTK.shape[1]
  query = query_SHK.reshape(S, groups, H // groups, K)
  query = query * jnp.asarray(1.0 / math.sqrt(K), query.dtype)
  score = jnp.einsum(
      'sgrk,sgtk->sgrt', query, key_SHTK, preferred_element_type=jnp.float32
  )
  score = jnp.where(visible_ST[:, None, None], score, attention.MASKED)
  weight = jax.nn.softmax(score, axis=-1).astype(value_SHTK.dtype)
  out = jnp.einsum('sgrt,sgtk->sgrk', weight, value_SHTK)
  return out.reshape(S, H, K)


def forced_logprobs(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    ids: Any,
    *,
    dtype: str = 'float32',
    temperature: float = 1.0,
) -> np.ndarray:
  """Log-prob of ids[1:], each by prefill and steps as in sampling (O4).

  Prefixes of several lengths are prefilled, and what follows each is forced
  through single steps until the next prefix takes over: every token is read
  both ways somewhere.

  Args:
    params: the actor's parameters.
    config: the decoder's settings.
    ids: token ids.
    dtype: dtype of activations and cache.
    temperature: divides the logits.

  Returns:
    float32 [len(ids) - 1].
  """
  ids = np.asarray(ids, np.int32)
  count = len(ids) - 1
  if count < 1:
    return np.zeros(0, np.float32)
  chunk = max(1, math.isqrt(count))
  starts = np.arange(0, count, chunk)
  # Row s prefills ids[: starts[s] + 1] and then forces `chunk` ids.
  token = np.tile(np.append(ids, np.full(chunk, ids[-1])), (len(starts), 1))
  score = _forced_scores(
      params,
      jnp.asarray(token),
      jnp.asarray(starts, jnp.int32),
      temperature,
      config=config,
      chunk=chunk,
      dtype=dtype,
  )
  return np.asarray(score, np.float32).reshape(-1)[:count]


@jax.jit(static_argnames=('config', 'chunk', 'dtype'))
def _forced_scores(
    params, token_ST, start_S, temperature, *, config, chunk, dtype
) -> jax.Array:
  """Row s scores the `chunk` ids after position start_S[s]: [S, chunk]."""
  weights = arrange(params, config, dtype=dtype)
  cache = prefill(weights, config, token_ST, start_S + 1)
  take = lambda position_S: jnp.take_along_axis(
      token_ST, position_S[:, None], axis=1
  )[:, 0]

  def one(cache, offset):
    position_S = start_S + offset
    hidden_DS, cache = step(
        weights, config, take(position_S), position_S, cache
    )
    scaled_VS = logits(weights, config, hidden_DS) / temperature
    logp_S, _ = actor.measure_logits(scaled_VS.T, take(position_S + 1))
    return cache, logp_S

  _, logp = jax.lax.scan(one, cache, jnp.arange(chunk))
  return logp.T
