"""Fills free slots: prompts are read and inserted in one call.

A prompt is read whole, or, where it continues what its slot read before, from
there on: a turn of a long conversation costs what is new in it.

The host lays prompts and requests out in one int32 table, divided over the
shards like the slots. Each shard works through its own part, so nothing
crosses shards, and pays for the prompts it has, not for padding rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import arranged
from rl_tpu.models import config as config_lib
from rl_tpu.models import decode
from rl_tpu.models import kv_cache
from rl_tpu.sampler import state as state_lib

# Columns behind the tokens of a row: their number and the position of the
# first; then, of one insert, the row its prompt is in, its slot within the
# shard, and its control row.
_LENGTH, _START, _SOURCE, _SLOT, _CONTROL = range(5)
EXTRA = _CONTROL + state_lib.WIDTH
_MIN_BUCKET = 16


class Table(NamedTuple):
  """One refill.

  Attributes:
    data: int32 [shards * depth, bucket + columns]; a shard may fill all its
      slots.
    tokens: prompt tokens that are read.
    padding: padding tokens that are read with them.
    reused: prompt tokens that are in the cache already.
  """

  data: np.ndarray
  tokens: int
  padding: int
  reused: int


def bucket_for(insert: state_lib.Insert, whole: int) -> int:
  """Padded length of what is read of a prompt.

  Args:
    insert: a request that continues a slot's sequence.
    whole: the padded length of its whole prompt.

  Returns:
    A power of two; `whole` where continuing saves nothing.
  """
  new, size = len(insert.prompt) - insert.start, _MIN_BUCKET
  while size < new:
    size *= 2
  return min(size, whole)


def depth(slots: int, chunk: int) -> int:
  """Rows of one shard's part of a table: its slots, in whole chunks."""
  return -(-slots // chunk) * chunk


def table(
    inserts: Sequence[state_lib.Insert],
    *,
    bucket: int,
    slots: int,
    shards: int,
    chunk: int,
) -> Table:
  """Lays out one refill.

  Equal whole prompts that follow each other on one shard are read once.

  Args:
    inserts: requests that all start at 0, or all continue.
    bucket: padded length of what is read of the prompts.
    slots: of the engine.
    shards: parts that the slots are divided into.
    chunk: prompts that a shard reads at once.
  """
  local = slots // shards
  height = depth(local, chunk)
  out = np.zeros((shards, height, bucket + EXTRA), np.int32)
  out[:, :, bucket + _SOURCE] = height  # Behind the last: no insert.
  last: list[bytes | None] = [None] * shards
  prompts, used = [0] * shards, [0] * shards
  for insert in inserts:
    shard, index = divmod(insert.slot, local)
    content = insert.prompt.tobytes()
    if insert.start or last[shard] != content:
      new = insert.prompt[insert.start :]
      line = out[shard, prompts[shard]]
      line[: len(new)] = new
      line[bucket + _LENGTH] = len(new)
      line[bucket + _START] = insert.start
      prompts[shard] += 1
      last[shard] = content
    line = out[shard, used[shard], bucket:]
    line[_SOURCE], line[_SLOT] = prompts[shard] - 1, index
    line[_CONTROL:] = np.frombuffer(insert.control, np.int32)
    used[shard] += 1
  tokens = int(np.sum(out[:, :, bucket + _LENGTH]))
  rows = sum(-(-count // chunk) * chunk for count in prompts)
  return Table(
      data=out.reshape(shards * height, -1),
      tokens=tokens,
      padding=rows * bucket - tokens,
      reused=sum(insert.start for insert in inserts),
  )


def run(
    weights: arranged.Weights,
    state: state_lib.DecodeState,
    table_PC: jax.Array,
    *,
    config: config_lib.DecoderConfig,
    mesh: jax.sharding.Mesh,
    chunk: int,
    continues: bool,
) -> state_lib.DecodeState:
  """Works through one shard's part of a table, `chunk` prompts at a time.

  Args:
    weights: the weights.
    state: the shard's slots.
    table_PC: its part of `Table.data`.
    config: the decoder's settings.
    mesh: that the shards are of.
    chunk: as in `table`.
    continues: the prompts continue what is in their slots.

  Returns:
    The new state.
  """
  bucket = table_PC.shape[1] - EXTRA
  column = lambda index: table_PC[:, bucket + index]
  length_P, start_P = column(_LENGTH), column(_START)
  source_P, slot_P = column(_SOURCE), column(_SLOT)
  control = table_PC[:, bucket + _CONTROL :]
  is_ring = kv_cache.rings(config)

  def read(part, state):
    first = part * chunk
    rows = lambda x: jax.lax.dynamic_slice_in_dim(x, first, chunk)
    token = rows(table_PC)[:, :bucket]
    if continues:
      cache = _take(state.cache, rows(slot_P), is_ring, bucket)
      cache = decode.extend(
          weights, config, token, rows(start_P), rows(length_P), cache, mesh
      )
    else:
      cache = decode.prefill(weights, config, token, rows(length_P), mesh)

    def put(insert, state):
      slot, source = slot_P[insert], source_P[insert]

      def copy(is_ring, old, new):
        if is_ring:
          return state_lib.put_row(old, slot, new, source - first)
        start = start_P[source]
        return _put_span(old, slot, new, source - first, start, bucket)

      return state_lib.DecodeState(
          cache=jax.tree.map(copy, is_ring, state.cache, cache),
          control=state_lib.put_row(state.control, slot, control, insert),
      )

    # Inserts are in the order of their prompts.
    before = lambda row: jnp.sum(source_P < row, dtype=jnp.int32)
    return jax.lax.fori_loop(before(first), before(first + chunk), put, state)

  parts = (jnp.sum(length_P > 0, dtype=jnp.int32) + chunk - 1) // chunk
  if config.mixture is not None:
    # Shards with experts of each other take part in each other's prompts.
    parts = jax.lax.pmax(parts, 'expert')
  return jax.lax.fori_loop(0, parts, read, state)


def _put_span(old, slot, new, index, start, length: int) -> jax.Array:
  """Copies `length` positions of row `index` of `new` into row `slot`.

  They are those from `start` on, or the last ones.
  """
  start = jnp.minimum(start, old.shape[2] - length)
  size = (1, new.shape[1], length, new.shape[3])
  span = jax.lax.dynamic_slice(new, (index, 0, start, 0), size)
  return jax.lax.dynamic_update_slice(old, span, (slot, 0, start, 0))


def _take(cache, slot_N: jax.Array, is_ring, spare: int) -> kv_cache.Cache:
  """Rows of the cache, one copy each, with room for padding at the end."""
  count = slot_N.shape[0]

  def zeros(is_ring: bool, leaf: jax.Array) -> jax.Array:
    _, H, T, K = leaf.shape
    length = T if is_ring else T + spare
    return jnp.zeros((count, H, length, K), leaf.dtype)

  empty = jax.tree.map(zeros, is_ring, cache)
  take = lambda n, rows: jax.tree.map(
      lambda old, new: state_lib.put_row(old, n, new, slot_N[n]), rows, cache
  )
  return jax.lax.fori_loop(0, count, take, empty)
