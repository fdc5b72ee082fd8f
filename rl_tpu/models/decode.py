"""Decoding with a key-value cache: prefill, single steps, logits.

The same layers as `decoder`, on the weights of `arranged`. Activations are
columns, [D, N] for N tokens: the matrix products of few columns are fastest
so.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import arranged
from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import decode_layer
from rl_tpu.models import decoder
from rl_tpu.models import kv_cache


def prefill(
    weights: arranged.Weights,
    config: config_lib.DecoderConfig,
    token_ST: jax.Array,
    length_S: jax.Array,
    mesh: jax.sharding.Mesh | None = None,
) -> kv_cache.Cache:
  """Reads prompts padded on the right.

  Args:
    weights: the arranged parameters.
    config: the decoder's settings.
    token_ST: prompts; any valid id after the prompt.
    length_S: tokens of each prompt.
    mesh: of the `shard_map` over batch axes that this runs in, if it does.

  Returns:
    A cache of T positions, or of the window where that is less. What it holds
    after a prompt's end is overwritten by `step` before it is read. There are
    no logits: the first step feeds the last prompt token again, which leaves
    the cache as it is.
  """
  S, T = token_ST.shape
  position_ST = jnp.broadcast_to(jnp.arange(T), (S, T))
  segment_ST = jnp.where(position_ST < length_S[:, None], 0, -1)
  rotations = _rotations(weights, config, position_ST.reshape(-1))
  rows = lambda x: x.reshape(-1, config.head_width, S, T).transpose(2, 3, 0, 1)
  x = _embed(weights, config, token_ST)
  keys, values = [], []
  for index, layer in enumerate(weights.layers):
    projected = decode_layer.project(layer, config, x, rotations[index])
    query, key, value = map(rows, projected)
    window = config.window if index in config.local_layers else None
    for kept, new in ((keys, key), (values, value)):
      new_SHTK = jnp.swapaxes(new, 1, 2)
      kept.append(kv_cache.of_prompts(new_SHTK, length_S, window))
    if index + 1 < config.num_layers:
      attended_STHK = attention.packed(
          query,
          key,
          value,
          segment_ST,
          scalar=config.query_scalar,
          softcap=config.attention_softcap,
          window=window,
      )
      columns = attended_STHK.reshape(S * T, -1).T
      x = decode_layer.merge(layer, config, x, columns, mesh)
  return kv_cache.Cache(key=tuple(keys), value=tuple(values))


def extend(
    weights: arranged.Weights,
    config: config_lib.DecoderConfig,
    token_ST: jax.Array,
    start_S: jax.Array,
    length_S: jax.Array,
    cache: kv_cache.Cache,
    mesh: jax.sharding.Mesh | None = None,
) -> kv_cache.Cache:
  """Reads what follows a sequence that is in the cache already.

  Args:
    weights: the arranged parameters.
    config: the decoder's settings.
    token_ST: what follows, padded on the right with any valid id.
    start_S: position of its first token; start_S + T must be within the
      cache.
    length_S: tokens without the padding.
    cache: the sequences' keys and values up to there.
    mesh: as in `prefill`.

  Returns:
    The cache; padding is overwritten before it is read, as in `prefill`.
  """
  return _feed(weights, config, token_ST, start_S, length_S, cache, mesh)[1]


def step(
    weights: arranged.Weights,
    config: config_lib.DecoderConfig,
    token_S: jax.Array,
    position_S: jax.Array,
    cache: kv_cache.Cache,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[jax.Array, kv_cache.Cache]:
  """Feeds one token to every slot.

  Args:
    weights: the arranged parameters.
    config: the decoder's settings.
    token_S: the token of each slot.
    position_S: its position, which is where the cache is written.
    cache: donate it, or every step copies it.
    mesh: as in `prefill`.

  Returns:
    The normed hidden state after the token, [D, S], and the cache.
  """
  token_ST, one_S = token_S[:, None], jnp.ones_like(position_S)
  x_DS, cache = _feed(
      weights, config, token_ST, position_S, one_S, cache, mesh
  )
  return decode_layer.norm(x_DS, weights.final_norm, config), cache


def _feed(
    weights: arranged.Weights,
    config: config_lib.DecoderConfig,
    token_ST: jax.Array,
    start_S: jax.Array,
    length_S: jax.Array,
    cache: kv_cache.Cache,
    mesh: jax.sharding.Mesh | None,
) -> tuple[jax.Array, kv_cache.Cache]:
  """Runs T tokens a slot; the residual stream [D, S * T] and the cache."""
  S, T = token_ST.shape
  position_ST = start_S[:, None] + jnp.arange(T)
  rotations = _rotations(weights, config, position_ST.reshape(-1))
  visible = kv_cache.visible(config, cache, start_S, T)
  is_ring = kv_cache.rings(config).key
  heads = lambda x: x.reshape(-1, config.head_width, S, T).transpose(2, 0, 3, 1)
  x = _embed(weights, config, token_ST)
  keys, values = [], []
  for index, layer in enumerate(weights.layers):
    projected = decode_layer.project(layer, config, x, rotations[index])
    query, key, value = map(heads, projected)
    (seen_key, key), (seen_value, value) = (
        kv_cache.add(old[index], new, start_S, length_S, is_ring[index])
        for old, new in ((cache.key, key), (cache.value, value))
    )
    keys.append(key)
    values.append(value)
    attended = decode_layer.attend(
        query, seen_key, seen_value, visible[index], config
    )
    columns = attended.transpose(1, 3, 0, 2).reshape(-1, S * T)
    x = decode_layer.merge(layer, config, x, columns, mesh)
  return x, kv_cache.Cache(key=tuple(keys), value=tuple(values))


def logits(
    weights: arranged.Weights,
    config: config_lib.DecoderConfig,
    hidden_DS: jax.Array,
) -> jax.Array:
  """float32 logits [V, S]; -inf where a row has no token (K22)."""
  head = weights.embed if weights.head is None else weights.head
  out_VS = jnp.matmul(head, hidden_DS, preferred_element_type=jnp.float32)
  out_VS = attention.cap(out_VS, config.logit_softcap)
  usable = config.usable_vocab
  if usable is None or usable == config.vocab_size:
    return out_VS
  has_token_V = jnp.arange(config.vocab_size) < usable
  return jnp.where(has_token_V[:, None], out_VS, -jnp.inf)


def _embed(weights, config, token_ST) -> jax.Array:
  rows = weights.embed[token_ST.reshape(-1)]
  return decoder.scale_embedding(rows, config).T


def _rotations(weights, config, position_N) -> list[tuple[jax.Array, ...]]:
  """Cosines and sines [pairs, N] of each layer."""
  at = lambda table: tuple(x[position_N].T for x in table)
  plain = local = at(weights.rotation)
  if weights.local_rotation is not None:
    local = at(weights.local_rotation)
  return [
      local if index in config.local_layers else plain
      for index in range(config.num_layers)
  ]


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

  Raises:
    ValueError: more ids than the model has positions.
  """
  ids = np.asarray(ids, np.int32)
  if len(ids) > config.max_length:
    raise ValueError(
        f'{len(ids)} ids are more than the {config.max_length} positions of'
        ' the model (max_length).'
    )
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
  weights = arranged.arrange(params, config, dtype=dtype)
  return forced_scores(
      weights, token_ST, start_S, temperature, config=config, chunk=chunk
  )


@jax.jit(static_argnames=('config', 'chunk'))
def forced_scores(
    weights: arranged.Weights,
    token_ST: jax.Array,
    start_S: jax.Array,
    temperature: jax.Array,
    *,
    config: config_lib.DecoderConfig,
    chunk: int,
    support_SCM: jax.Array | None = None,
) -> jax.Array:
  """Log-probs of given ids by prefill and single steps (O4).

  Args:
    weights: what is served.
    token_ST: a sequence a row.
    start_S: each row prefills up to here, this position included.
    temperature: divides the logits.
    config: the decoder's settings.
    chunk: ids that are forced and scored after that; start_S + chunk must be
      within T.
    support_SCM: ids that each scored one could have been drawn from, -1
      behind them; one without any is the whole vocabulary, as is None.

  Returns:
    float32 [S, chunk]; -inf for an id outside its support.
  """
  cache = prefill(weights, config, token_ST, start_S + 1)
  take = lambda position_S: jnp.take_along_axis(
      token_ST, position_S[:, None], axis=1
  )[:, 0]

  def one(cache, inputs):
    offset, support_SM = inputs
    position_S = start_S + offset
    hidden_DS, cache = step(
        weights, config, take(position_S), position_S, cache
    )
    scaled_VS = logits(weights, config, hidden_DS) / temperature
    logp_S, *_ = actor.measure_logits(
        scaled_VS.T, take(position_S + 1), support_SM
    )
    return cache, logp_S

  support_CSM = None
  if support_SCM is not None:
    support_CSM = jnp.swapaxes(support_SCM, 0, 1)
  _, logp = jax.lax.scan(one, cache, (jnp.arange(chunk), support_CSM))
  return logp.T
