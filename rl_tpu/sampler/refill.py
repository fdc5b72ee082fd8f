"""Fills free slots: prompts are prefilled and inserted in one call.

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
from rl_tpu.sampler import state as state_lib

# Columns behind a prompt's tokens: its length; then, of one insert, the row
# its prompt is in, its slot within the shard, and its control row.
_LENGTH, _SOURCE, _SLOT, _CONTROL = range(4)
_EXTRA = _CONTROL + state_lib.WIDTH


class Table(NamedTuple):
  """One refill.

  Attributes:
    data: int32 [shards * depth, bucket + columns]; a shard may fill all its
      slots.
    tokens: prompt tokens that are read.
    padding: padding tokens that are read with them.
  """

  data: np.ndarray
  tokens: int
  padding: int


def table(
    inserts: Sequence[tuple[int, np.ndarray, bytes]],
    *,
    bucket: int,
    slots: int,
    shards: int,
    chunk: int,
) -> Table:
  """Lays out one refill.

  Equal prompts that follow each other on one shard are read once.

  Args:
    inserts: slot, prompt and `state.row` of each request.
    bucket: padded length of the prompts.
    slots: of the engine.
    shards: parts that the slots are divided into.
    chunk: prompts that a shard reads at once.
  """
  local = slots // shards
  depth = -(-local // chunk) * chunk
  out = np.zeros((shards, depth, bucket + _EXTRA), np.int32)
  out[:, :, bucket + _SOURCE] = depth  # Behind the last: no insert.
  last: list[bytes | None] = [None] * shards
  prompts, used = [0] * shards, [0] * shards
  for slot, prompt, control in inserts:
    shard, index = divmod(slot, local)
    content = prompt.tobytes()
    if last[shard] != content:
      line = out[shard, prompts[shard]]
      line[: len(prompt)] = prompt
      line[bucket + _LENGTH] = len(prompt)
      prompts[shard] += 1
      last[shard] = content
    line = out[shard, used[shard], bucket:]
    line[_SOURCE], line[_SLOT] = prompts[shard] - 1, index
    line[_CONTROL:] = np.frombuffer(control, np.int32)
    used[shard] += 1
  tokens = int(np.sum(out[:, :, bucket + _LENGTH]))
  rows = sum(-(-count // chunk) * chunk for count in prompts)
  data = out.reshape(shards * depth, -1)
  return Table(data, tokens, rows * bucket - tokens)


def run(
    weights: arranged.Weights,
    state: state_lib.DecodeState,
    table_PC: jax.Array,
    *,
    config: config_lib.DecoderConfig,
    chunk: int,
) -> state_lib.DecodeState:
  """Works through one shard's part of `table`, `chunk` prompts at a time."""
  bucket = table_PC.shape[1] - _EXTRA
  column = lambda index: table_PC[:, bucket + index]
  length_P, source_P, slot_P = map(column, (_LENGTH, _SOURCE, _SLOT))
  control = table_PC[:, bucket + _CONTROL :]

  def read(part, state):
    start = part * chunk
    rows = lambda x: jax.lax.dynamic_slice_in_dim(x, start, chunk)
    prefix = decode.prefill(
        weights, config, rows(table_PC)[:, :bucket], rows(length_P)
    )

    def put(insert, state):
      slot = slot_P[insert]
      source = source_P[insert] - start
      return state_lib.DecodeState(
          cache=jax.tree.map(
              lambda old, new: state_lib.put_row(old, slot, new, source),
              state.cache,
              prefix,
          ),
          control=state_lib.put_row(state.control, slot, control, insert),
      )

    # Inserts are in the order of their prompts.
    before = lambda row: jnp.sum(source_P < row, dtype=jnp.int32)
    return jax.lax.fori_loop(before(start), before(start + chunk), put, state)

  parts = (jnp.sum(length_P > 0, dtype=jnp.int32) + chunk - 1) // chunk
  return jax.lax.fori_loop(0, parts, read, state)
