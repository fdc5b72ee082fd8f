"""The decode state: the cache, and one row of int32 per slot."""

import struct
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import kv_cache
from rl_tpu.sampler import sampling
from rl_tpu.sampler import types

# token, position, generated, limit, live, seed (2), temperature, top_k,
# top_p, min_p, stop ids: one array, because each costs a transfer.
_ROW = struct.Struct(f'<iiiiiIIfiff{types.MAX_STOP_IDS}i')
WIDTH = _ROW.size // 4
LIVE = 4


class DecodeState(NamedTuple):
  """Everything that a decode step transforms.

  Attributes:
    cache: keys and values.
    control: int32 [S, WIDTH], see `Slots`.
  """

  cache: kv_cache.Cache
  control: jax.Array


class Slots(NamedTuple):
  """The columns of `DecodeState.control`.

  Attributes:
    token_S: last token of the sequence, not yet fed.
    position_S: its position.
    generated_S: tokens sampled for the request.
    limit_S: its max_tokens.
    live_S: bool, the slot holds an unfinished request.
    seed_S2: uint32 words of the request's seed.
    settings: how to draw.
    stop_SN: stop ids, -1 where there is none.
  """

  token_S: jax.Array
  position_S: jax.Array
  generated_S: jax.Array
  limit_S: jax.Array
  live_S: jax.Array
  seed_S2: jax.Array
  settings: sampling.Settings
  stop_SN: jax.Array


class Insert(NamedTuple):
  """A request on its way into a slot.

  Attributes:
    slot: where to.
    prompt: int32 ids, tokens kept at a restart included.
    start: positions before it are in the slot's cache already; 0 is none.
    control: `row` of the request.
  """

  slot: int
  prompt: np.ndarray
  start: int
  control: bytes


def read(control: jax.Array) -> Slots:
  """Names the columns."""
  as_float = lambda column: jax.lax.bitcast_convert_type(
      control[:, column], jnp.float32
  )
  return Slots(
      token_S=control[:, 0],
      position_S=control[:, 1],
      generated_S=control[:, 2],
      limit_S=control[:, 3],
      live_S=control[:, LIVE] != 0,
      seed_S2=jax.lax.bitcast_convert_type(control[:, 5:7], jnp.uint32),
      settings=sampling.Settings(
          temperature_S=as_float(7),
          top_k_S=control[:, 8],
          top_p_S=as_float(9),
          min_p_S=as_float(10),
      ),
      stop_SN=control[:, 11:],
  )


def advance(
    control: jax.Array, token_S, position_S, generated_S, live_S
) -> jax.Array:
  """The control array after some steps; the settings stay."""
  moved = (token_S, position_S, generated_S, control[:, 3], live_S)
  columns = [x.astype(jnp.int32)[:, None] for x in moved]
  return jnp.concatenate([*columns, control[:, LIVE + 1 :]], axis=1)


def row(
    params: types.SamplingParams,
    *,
    token: int = 0,
    position: int = 0,
    generated: int = 0,
) -> bytes:
  """One row of `control` for a request, as the bytes of int32."""
  stop = params.stop_ids
  seed = params.seed & (2**64 - 1)
  return _ROW.pack(
      token,
      position,
      generated,
      params.max_tokens,
      1,
      seed >> 32,
      seed & (2**32 - 1),
      params.temperature,
      params.top_k,
      params.top_p,
      params.min_p,
      *stop,
      *(-1,) * (types.MAX_STOP_IDS - len(stop)),
  )


def rows(packed: list[bytes]) -> np.ndarray:
  """int32 [len(packed), WIDTH]."""
  return np.frombuffer(b''.join(packed), np.int32).reshape(-1, WIDTH)


def put_row(
    old: jax.Array, slot: jax.Array, new: jax.Array, index: jax.Array
) -> jax.Array:
  """Overwrites the start of row `slot` with row `index` of `new`."""
  row = jax.lax.dynamic_slice_in_dim(new, index, 1)
  return jax.lax.dynamic_update_slice(
      old, row, (slot, *(0,) * (old.ndim - 1))
  )
