"""Prefill and single steps of decoding with a key-value cache."""

import math
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

from rl_tpu.models import actor
from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import rotary


class Cache(NamedTuple):
  """Keys and values of every layer; each array is [S, H, T, K].

  The slot is axis 0 of every leaf, so that rows are inserted with one
  tree map. H counts key-value heads.
  """

  key: tuple[jax.Array, ...]
  value: tuple[jax.Array, ...]


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
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    token_ST: jax.Array,
    length_S: jax.Array,
    *,
    dtype: str = 'float32',
) -> tuple[jax.Array, Cache]:
  """Reads prompts padded on the right.

  Args:
    params: the actor's parameters.
    config: its settings.
    token_ST: prompts; any valid id after the prompt.
    length_S: tokens of each prompt, at least 1.
    dtype: dtype of activations and cache.

  Returns:
    The hidden state after the last prompt token, [S, D], and a cache of T
    positions. What it holds after a prompt's end is overwritten by `step`
    before it is read.
  """
  T = token_ST.shape[1]
  position_ST = jnp.broadcast_to(jnp.arange(T), token_ST.shape)
  segment_ST = jnp.where(position_ST < length_S[:, None], 0, -1)
  cos, sin = rotary.angles(position_ST, config)
  graph = decoder.block_graph(config)

  def layer(x, layer_params):
    block = nnx.merge(graph, layer_params)
    query, key, value = block.project(x, cos, sin)
    attended = attention.packed(query, key, value, segment_ST)
    swap = lambda array: jnp.swapaxes(array, 1, 2)
    return block.merge(x, attended), (swap(key), swap(value))

  x = decoder.embed(params, token_ST, dtype)
  x, (key, value) = jax.lax.scan(layer, x, params['layers'])
  last = jnp.take_along_axis(x, (length_S - 1)[:, None, None], axis=1)[:, 0]
  hidden_SD = decoder.final_norm(params, config, last)
  return hidden_SD, Cache(key=tuple(key), value=tuple(value))


def step(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    token_S: jax.Array,
    position_S: jax.Array,
    cache: Cache,
    *,
    attend_length: int | None = None,
) -> tuple[jax.Array, Cache]:
  """Feeds one token to every slot.

  Args:
    params: the actor's parameters.
    config: its settings.
    token_S: the token of each slot.
    position_S: its position, which is where the cache is written.
    cache: donate it, or every step copies it.
    attend_length: static; only so many positions are read. All of
      `position_S` that matter must be below it.

  Returns:
    The hidden state after the token, [S, D], and the cache.
  """
  dtype = cache.key[0].dtype
  cos, sin = rotary.angles(position_S, config)
  graph = decoder.block_graph(config)
  length = attend_length or cache.key[0].shape[2]
  visible_ST = jnp.arange(length) <= position_S[:, None]
  x = decoder.embed(params, token_S, dtype)
  keys, values = [], []
  for index in range(config.num_layers):
    layer_params = jax.tree.map(lambda p: p[index], params['layers'])
    block = nnx.merge(graph, layer_params)
    query, key, value = block.project(x, cos, sin)
    keys.append(_write(cache.key[index], key, position_S))
    values.append(_write(cache.value[index], value, position_S))
    attended = _attend(
        query,
        keys[-1][:, :, :length],
        values[-1][:, :, :length],
        visible_ST,
    )
    x = block.merge(x, attended)
  hidden_SD = decoder.final_norm(params, config, x)
  return hidden_SD, Cache(key=tuple(keys), value=tuple(values))


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


def logits(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    hidden_SD: jax.Array,
) -> jax.Array:
  """float32 logits [S, V]; -inf where a row has no token (K22)."""
  kernel_DV = actor.output_kernel(params, config)
  out_SV = actor.logits(hidden_SD, kernel_DV, config)
  usable = config.usable_vocab
  if usable is None or usable == config.vocab_size:
    return out_SV
  return jnp.where(jnp.arange(config.vocab_size) < usable, out_SV, -jnp.inf)
