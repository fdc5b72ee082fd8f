"""Draws one token per slot from logits, with the log-prob it was drawn at."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.types import support

_BELOW_ONE = 1.0 - 2.0**-22  # Keeps a target below the sum it is a share of.


class Drawn(NamedTuple):
  """One token per slot.

  Attributes:
    token_S: int32 ids.
    logp_S: float32, under the distribution drawn from.
    count_S: int32 size of the support, see `types.support`.
    support_SM: int32 ids of the support, likeliest first, -1 behind them.
  """

  token_S: jax.Array
  logp_S: jax.Array
  count_S: jax.Array
  support_SM: jax.Array


class Settings(NamedTuple):
  """`types.SamplingParams` of every slot."""

  temperature_S: jax.Array
  top_k_S: jax.Array
  top_p_S: jax.Array
  min_p_S: jax.Array


def truncates(settings: Settings) -> jax.Array:
  """True for slots whose support is smaller than the vocabulary."""
  return support.truncates(
      settings.top_k_S, settings.top_p_S, settings.min_p_S
  )


def random_bits(seed_S2: jax.Array, index_KS: jax.Array) -> jax.Array:
  """64 bits for token `index` of the request with that seed: [K, S, 2].

  They are the key `fold_in(seed, index)`: nothing else of the schedule enters.
  """
  key = jax.vmap(
      lambda seed, index: jax.random.fold_in(
          jax.random.wrap_key_data(seed), index
      )
  )
  keys = jax.vmap(key, in_axes=(None, 0))(seed_S2, index_KS)
  return jax.random.key_data(keys)


def draw(
    logits_VS: jax.Array,
    bits_S2: jax.Array,
    settings: Settings,
    any_truncates: jax.Array,
    *,
    max_support: int = 0,
) -> Drawn:
  """Draws from softmax(logits / temperature), truncated where asked.

  Args:
    logits_VS: float32; -inf is never drawn.
    bits_S2: `random_bits` of the slots.
    settings: of the slots.
    any_truncates: scalar; False skips the search for the support.
    max_support: ids of a truncated support that are returned at most; 0
      returns none.

  Returns:
    The tokens with their log-probs under the distribution drawn from, and
    what else could have been drawn. At temperature 0 the likeliest token and
    its log-prob at temperature 1.
  """
  greedy_S = settings.temperature_S == 0.0
  scaled_VS = logits_VS / jnp.where(greedy_S, 1.0, settings.temperature_S)
  top_S = jnp.max(scaled_VS, axis=0)
  threshold_S = jax.lax.cond(
      any_truncates,
      lambda: _threshold(scaled_VS, top_S, settings),
      lambda: jnp.full_like(top_S, -jnp.inf),
  )
  threshold_S = jnp.where(greedy_S, -jnp.inf, threshold_S)
  kept_VS = scaled_VS >= threshold_S
  weight_VS = jnp.where(kept_VS, jnp.exp(scaled_VS - top_S), 0.0)
  total_S = jnp.sum(weight_VS, axis=0)
  beaten_VS = greedy_S & (scaled_VS < top_S)
  token_S = _pick(jnp.where(beaten_VS, 0.0, weight_VS), bits_S2)
  chosen_S = jnp.take_along_axis(scaled_VS, token_S[None], axis=0)[0]
  count_S, support_SM = _support(
      jnp.where(kept_VS, scaled_VS, -jnp.inf),
      truncates(settings) & ~greedy_S,
      any_truncates,
      min(max_support, len(logits_VS)),
  )
  logp_S = chosen_S - top_S - jnp.log(total_S)
  return Drawn(token_S, logp_S, count_S, support_SM)


def _support(
    kept_VS: jax.Array,
    truncated_S: jax.Array,
    any_truncates: jax.Array,
    size: int,
) -> tuple[jax.Array, jax.Array]:
  """Number and ids of the kept tokens of every truncated slot."""
  slots = truncated_S.shape[0]
  nothing = (
      jnp.full(slots, support.WHOLE, jnp.int32),
      jnp.full((slots, size), -1, jnp.int32),
  )
  if not size:
    return nothing

  def find():
    count_S = jnp.sum(kept_VS > -jnp.inf, axis=0, dtype=jnp.int32)
    fits_S = truncated_S & (count_S <= size)
    _, id_SM = jax.lax.top_k(kept_VS.T, size)
    is_kept_SM = (jnp.arange(size) < count_S[:, None]) & fits_S[:, None]
    count_S = jnp.where(fits_S, count_S, support.TOO_LARGE)
    return (
        jnp.where(truncated_S, count_S, support.WHOLE),
        jnp.where(is_kept_SM, id_SM.astype(jnp.int32), -1),
    )

  return jax.lax.cond(any_truncates, find, lambda: nothing)


def _pick(weight_VS: jax.Array, bits_S2: jax.Array) -> jax.Array:
  """Index drawn in proportion to weight: first a block, then inside it.

  Two uniform numbers a token instead of V, and each resolves 2^-24 of its own
  level.
  """
  V, S = weight_VS.shape
  size = 1 << max(0, math.ceil(math.log2(V) / 2))
  blocks = -(-V // size)
  padded = jnp.pad(weight_VS, ((0, blocks * size - V), (0, 0)))
  parts = padded.reshape(blocks, size, S)
  uniform_S2 = (bits_S2 >> 8).astype(jnp.float32) * 2.0**-24
  block_S = _invert(jnp.sum(parts, axis=1), uniform_S2[:, 0])
  inside = jnp.take_along_axis(parts, block_S[None, None], axis=0)[0]
  index_S = block_S * size + _invert(inside, uniform_S2[:, 1])
  return jnp.minimum(index_S, V - 1).astype(jnp.int32)


def _invert(weight_NS: jax.Array, uniform_S: jax.Array) -> jax.Array:
  """First index whose running sum exceeds the uniform share of the total.

  An index of weight 0 repeats the sum before it and is never first.
  """
  count = weight_NS.shape[0]
  lower = jnp.tril(jnp.ones((count, count), jnp.float32))
  running_NS = jnp.matmul(
      lower, weight_NS, precision=jax.lax.Precision.HIGHEST
  )
  total_S = running_NS[-1]
  target_S = jnp.minimum(uniform_S * total_S, total_S * _BELOW_ONE)
  index_S = jnp.sum(running_NS <= target_S, axis=0, dtype=jnp.int32)
  return jnp.minimum(index_S, count - 1)


def _threshold(
    scaled_VS: jax.Array, top_S: jax.Array, settings: Settings
) -> jax.Array:
  """Smallest scaled logit that each slot keeps."""
  bits_VS = _ordered_bits(scaled_VS)
  has_token_VS = scaled_VS > -jnp.inf
  count_VS = has_token_VS.astype(jnp.float32)
  top_k_S = settings.top_k_S.astype(jnp.float32)
  wanted_S = jnp.minimum(top_k_S, jnp.sum(count_VS, axis=0))
  by_k_S = _reaching(bits_VS, count_VS, wanted_S)
  by_k_S = jnp.where(settings.top_k_S > 0, by_k_S, 0)
  weight_VS = jnp.exp(scaled_VS - top_S)
  weight_VS = jnp.where(bits_VS >= by_k_S, weight_VS, 0.0)
  total_S = jnp.sum(weight_VS, axis=0)
  by_p_S = _reaching(bits_VS, weight_VS, settings.top_p_S * total_S)
  by_p_S = jnp.where(settings.top_p_S < 1.0, by_p_S, 0)
  kept_VS = has_token_VS & (bits_VS >= jnp.maximum(by_k_S, by_p_S))
  lowest_S = jnp.min(jnp.where(kept_VS, scaled_VS, jnp.inf), axis=0)
  return jnp.maximum(lowest_S, top_S + jnp.log(settings.min_p_S))


def _reaching(
    bits_VS: jax.Array, weight_VS: jax.Array, target_S: jax.Array
) -> jax.Array:
  """Largest t such that the weight of `bits >= t` reaches the target.

  Bisection over the 32 bits: 32 passes over V instead of a sort.
  """

  def set_bit(step, found_S):
    tried_S = found_S | (jnp.uint32(1) << (31 - step).astype(jnp.uint32))
    sum_S = jnp.sum(jnp.where(bits_VS >= tried_S, weight_VS, 0.0), axis=0)
    return jnp.where(sum_S >= target_S, tried_S, found_S)

  return jax.lax.fori_loop(
      0, 32, set_bit, jnp.zeros_like(target_S, jnp.uint32)
  )


def _ordered_bits(x: jax.Array) -> jax.Array:
  """uint32 in the order of the floats."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  negative = bits >> 31 == 1
  return jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))
