"""What the engine compiles: pure functions over the decode state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.models import arranged
from rl_tpu.models import config as config_lib
from rl_tpu.models import decode
from rl_tpu.models import kv_cache
from rl_tpu.sampler import contract
from rl_tpu.sampler import sampling
from rl_tpu.sampler import state as state_lib
from rl_tpu.sampler import types

DecodeState = state_lib.DecodeState


class Prefix(NamedTuple):
  """Prompts that were read and wait for a slot.

  Attributes:
    cache: keys and values, one row per prompt.
    token_S: last token of each prompt; decoding feeds it again.
    length_S: tokens of each prompt.
  """

  cache: kv_cache.Cache
  token_S: jax.Array
  length_S: jax.Array


def init_state(
    config: config_lib.DecoderConfig, slots: int, capacity: int, dtype: str
) -> DecodeState:
  """No request in any slot."""
  cache = kv_cache.init(config, slots, capacity, dtype)
  return DecodeState(cache, jnp.zeros((slots, state_lib.WIDTH), jnp.int32))


def prefill(
    weights: arranged.Weights,
    token_ST: jax.Array,
    length_S: jax.Array,
    *,
    config: config_lib.DecoderConfig,
    mesh: jax.sharding.Mesh,
) -> Prefix:
  """Reads prompts padded on the right, on every shard."""
  cache = decode.prefill(weights, config, token_ST, length_S, mesh)
  last_S = jnp.take_along_axis(token_ST, length_S[:, None] - 1, axis=1)
  return Prefix(cache, last_S[:, 0], length_S)


def insert(
    state: DecodeState,
    prefix: Prefix,
    row_N: jax.Array,
    slot_N: jax.Array,
    control: jax.Array,
) -> DecodeState:
  """Puts row n of a prefix into slot n, with `control`'s settings."""
  control = control.at[:, 0].set(prefix.token_S[row_N])
  control = control.at[:, 1].set(prefix.length_S[row_N] - 1)

  def put(n, state):
    cache = jax.tree.map(
        lambda old, new: state_lib.put_row(old, slot_N[n], new, row_N[n]),
        state.cache,
        prefix.cache,
    )
    rows = state_lib.put_row(state.control, slot_N[n], control, n)
    return DecodeState(cache, rows)

  return jax.lax.fori_loop(0, len(slot_N), put, state)


def release(state: DecodeState, dead_S: jax.Array) -> DecodeState:
  """Ends the requests of some slots."""
  live_S = jnp.where(dead_S, 0, state.control[:, state_lib.LIVE])
  control = state.control.at[:, state_lib.LIVE].set(live_S)
  return DecodeState(state.cache, control)


def resize(
    state: DecodeState, *, config: config_lib.DecoderConfig, capacity: int
) -> DecodeState:
  """Gives the cache another length; what lies behind it is lost."""
  slots = state.control.shape[0]
  other = jax.eval_shape(lambda: kv_cache.init(config, slots, capacity))

  def fit(leaf: jax.Array, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    length = wanted.shape[2]
    more = max(0, length - leaf.shape[2])
    padded = jnp.pad(leaf, ((0, 0), (0, 0), (0, more), (0, 0)))
    return padded[:, :, :length]

  return DecodeState(jax.tree.map(fit, state.cache, other), state.control)


def generate(
    weights: arranged.Weights,
    state: DecodeState,
    *,
    config: config_lib.DecoderConfig,
    mesh: jax.sharding.Mesh,
    tokens_per_call: int,
    max_length: int,
    max_support: int,
) -> tuple[DecodeState, jax.Array]:
  """K decode steps; slots stop by themselves.

  Returns:
    The new state and `contract.pack`'s array.
  """
  slots = state_lib.read(state.control)
  index_K = jnp.arange(tokens_per_call)
  bits_KS2 = sampling.random_bits(
      slots.seed_S2, slots.generated_S + index_K[:, None]
  )
  any_truncates = jnp.any(
      slots.live_S & sampling.truncates(slots.settings)
  )

  def one(carry, bits_S2):
    cache, token_S, position_S, generated_S, live_S = carry
    hidden_DS, cache = decode.step(
        weights, config, token_S, position_S, cache, mesh
    )
    logits_VS = decode.logits(weights, config, hidden_DS)
    drawn = sampling.draw(
        logits_VS,
        bits_S2,
        slots.settings,
        any_truncates,
        max_support=max_support,
    )
    new_S = drawn.token_S
    finish_S = _finish(slots, new_S, position_S, generated_S, max_length)
    # A dead slot feeds the same token to the same place: nothing changes.
    move = lambda new, old: jnp.where(live_S, new, old)
    carry = (
        cache,
        move(new_S, token_S),
        move(position_S + 1, position_S),
        move(generated_S + 1, generated_S),
        live_S & (finish_S == 0),
    )
    return carry, (drawn, live_S, move(finish_S, 0))

  moving = (slots.token_S, slots.position_S, slots.generated_S, slots.live_S)
  (cache, *moved), (drawn, valid, finish) = jax.lax.scan(
      one, (state.cache, *moving), bits_KS2
  )
  columns = contract.Columns(
      token=drawn.token_S.T,
      valid=valid.T,
      length=moved[2],
      logprob=drawn.logp_S.T,
      finish=jnp.max(finish, axis=0),
      support_count=drawn.count_S.T,
      support=jnp.swapaxes(drawn.support_SM, 0, 1),
  )
  control = state_lib.advance(state.control, *moved)
  return DecodeState(cache, control), contract.pack(columns)


def _finish(slots, token_S, position_S, generated_S, max_length) -> jax.Array:
  """Code of the finish reason after a token, 0 if there is none."""
  code = types.FINISH_REASONS.index
  at_stop_S = jnp.any(token_S[:, None] == slots.stop_SN, axis=1)
  at_limit_S = generated_S + 1 >= slots.limit_S
  # The token sits at position + 1, and another one would need a place.
  at_end_S = position_S + 2 >= max_length
  ended_S = jnp.where(at_end_S, code(types.CONTEXT), 0)
  ended_S = jnp.where(at_limit_S, code(types.LENGTH), ended_S)
  return jnp.where(at_stop_S, code(types.STOP), ended_S)
