"""Suffix sums A_j = delta_j + c_j A_{j+1} over packed segments, in two levels.

A recursion of this form is affine in what comes from beyond: over any stretch
A_first = a + P * A_after, with P the product of the c. Rows are cut into
chunks that are scanned side by side; chunks are joined inside a row, and
segments, a few numbers each, along their rollout. Nothing but those few
numbers crosses rows, so rows may lie on different devices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.types import batch as batch_lib

# Chunks of a row are scanned in step. An odd number of them keeps the columns
# of the transposed arrays from sharing cache lines' sets.
_CHUNK = 128


class Rate(NamedTuple):
  """c of a decaying transition: a constant, or a number per position.

  Attributes:
    constant: gamma * lambda; read if `value_BT` is None.
    value_BT: the same for every position.
  """

  constant: float
  value_BT: jax.Array | None = None


def suffix_sums(
    joins: batch_lib.Joins,
    delta_BT: jax.Array,
    rates: Sequence[Rate],
    *,
    joined: bool,
) -> list[jax.Array]:
  """A_BT under every rate, 0 off the transitions.

  Args:
    joins: how positions follow each other.
    delta_BT: residuals, 0 off the transitions.
    rates: c where `joins.decay_BT`; 1 at the other transitions.
    joined: carry the trace on into the next segment of the rollout. False
      starts anew in every segment.
  """
  chunks = _Chunks(delta_BT.shape)
  decays_BT = joins.transition_mask_BT & joins.decay_BT
  end_BCK = chunks.split(joins.segment_end_BT)
  local = _scan(chunks, delta_BT, decays_BT, end_BCK, rates)
  # Positions after the last segment end of their chunk go on to the right.
  step_K = jnp.arange(chunks.length)
  last_end_BC = jnp.max(jnp.where(end_BCK, step_K, -1), axis=-1)
  after = _join_chunks(local, last_end_BC >= 0)
  ahead_BT = 0.0
  if joined:
    ordinal_BT = segment_ordinals(joins)
    ahead = _join_segments(joins, chunks, local, after, last_end_BC)
    ahead = by_ordinal(joins, ordinal_BT, ahead)
    ahead_BT = [x_N[ordinal_BT] for x_N in ahead]
  is_open_BCK = step_K > last_end_BC[..., None]
  out = []
  for index in range(len(rates)):
    scale_BCK = jnp.moveaxis(local.scale[:, index], 0, -1)
    value_BCK = jnp.moveaxis(local.value[:, index], 0, -1)
    beyond_BCK = after.value[index][..., None]
    if joined:
      ahead_BCK = chunks.split(ahead_BT[index])
      beyond_BCK = jnp.where(
          is_open_BCK,
          beyond_BCK + after.scale[index][..., None] * ahead_BCK,
          ahead_BCK,
      )
    else:
      beyond_BCK = jnp.where(is_open_BCK, beyond_BCK, 0.0)
    sum_BT = chunks.merge(value_BCK + scale_BCK * beyond_BCK)
    out.append(jnp.where(joins.transition_mask_BT, sum_BT, 0.0))
  return out


class _Affine(NamedTuple):
  """value + scale * (what comes from beyond), rates on the second-last..."""

  value: jax.Array
  scale: jax.Array


class _Chunks:
  """Rows of T tokens as C chunks of K, padded on the right."""

  def __init__(self, shape: tuple[int, int]):
    self.rows, self.tokens = shape
    self.count = max(1, self.tokens // _CHUNK) | 1
    self.length = -(-self.tokens // self.count)

  def split(self, array_BT: jax.Array) -> jax.Array:
    pad = self.count * self.length - self.tokens
    array_BT = jnp.pad(array_BT, ((0, 0), (0, pad)))
    return array_BT.reshape(self.rows, self.count, self.length)

  def merge(self, array_BCK: jax.Array) -> jax.Array:
    return array_BCK.reshape(self.rows, -1)[:, : self.tokens]


def _scan(chunks, delta_BT, decays_BT, end_BCK, rates) -> _Affine:
  """Scans all chunks from their right edge; [K, rate, B, C] each."""
  to_steps = lambda array_BCK: jnp.moveaxis(array_BCK, -1, 0)
  code_BT = decays_BT.astype(jnp.uint8)
  code_BCK = chunks.split(code_BT) * 2 + end_BCK.astype(jnp.uint8)
  constants = np.asarray([rate.constant for rate in rates], np.float32)
  varying = {
      index: to_steps(chunks.split(rate.value_BT))
      for index, rate in enumerate(rates)
      if rate.value_BT is not None
  }
  # One array [rate, (value, scale), B, C] makes each step a single loop.
  is_value = np.asarray([1.0, 0.0], np.float32)[None, :, None, None]
  start = 1.0 - is_value

  def step(state, inputs):
    delta_BC, code_BC, varying_BC = inputs
    c = jnp.stack([
        jnp.where(code_BC >= 2, varying_BC.get(i, constants[i]), 1.0)
        for i in range(len(rates))
    ])[:, None]
    state = jnp.where(code_BC % 2 == 1, start, state)
    state = delta_BC * is_value + c * state
    return state, state

  shape = (len(rates), 2, chunks.rows, chunks.count)
  _, states = jax.lax.scan(
      step,
      jnp.broadcast_to(start, shape),
      (to_steps(chunks.split(delta_BT)), to_steps(code_BCK), varying),
      reverse=True,
  )
  return _Affine(states[:, :, 0], states[:, :, 1])


def _join_chunks(local: _Affine, is_closed_BC: jax.Array) -> _Affine:
  """What lies beyond the right edge of each chunk in its row; [rate, B, C]."""
  first = _Affine(local.value[0], local.scale[0])

  def step(beyond, inputs):
    value, scale, closed_B = inputs
    through = jnp.where(closed_B, 0.0, scale)
    left = _Affine(
        value + through * beyond.value,
        jnp.where(closed_B, scale, scale * beyond.scale),
    )
    return left, beyond

  rates, rows = first.value.shape[:2]
  start = _Affine(jnp.zeros((rates, rows)), jnp.ones((rates, rows)))
  by_chunk = lambda array: jnp.moveaxis(array, -1, 0)
  _, beyond = jax.lax.scan(
      step,
      start,
      (by_chunk(first.value), by_chunk(first.scale), by_chunk(is_closed_BC)),
      reverse=True,
  )
  return _Affine(*(jnp.moveaxis(array, 0, -1) for array in beyond))


def _join_segments(joins, chunks, local, after, last_end_BC) -> list[jax.Array]:
  """A of the first transition after each segment, in its rollout; [N] each."""
  exists_N = joins.first_N >= 0
  place_N = jnp.maximum(joins.first_N, 0)
  row_N, column_N = place_N // chunks.tokens, place_N % chunks.tokens
  chunk_N, step_N = column_N // chunks.length, column_N % chunks.length
  is_open_N = step_N > last_end_BC[row_N, chunk_N]
  ahead = []
  for index in range(local.value.shape[1]):
    value_N = local.value[step_N, index, row_N, chunk_N]
    scale_N = local.scale[step_N, index, row_N, chunk_N]
    beyond_N = after.value[index][row_N, chunk_N]
    value_N += jnp.where(is_open_N, scale_N * beyond_N, 0.0)
    scale_N *= jnp.where(is_open_N, after.scale[index][row_N, chunk_N], 1.0)
    # A segment without a transition is crossed (G3).
    value_N = jnp.where(exists_N, value_N, 0.0)
    scale_N = jnp.where(exists_N, scale_N, 1.0)
    scale_N = jnp.where(joins.continues_N, scale_N, 0.0)
    first_N = _affine_suffix(value_N, scale_N)
    following_N = jnp.concatenate([first_N[1:], jnp.zeros(1)])
    ahead.append(jnp.where(joins.continues_N, following_N, 0.0))
  return ahead


def _affine_suffix(value_N: jax.Array, scale_N: jax.Array) -> jax.Array:
  """x_n = value_n + scale_n * x_{n+1}, with 0 after the last."""

  def combine(right, left):
    return (
        left[0] + left[1] * right[0],
        left[1] * right[1],
    )

  return jax.lax.associative_scan(combine, (value_N, scale_N), reverse=True)[0]


def segment_ordinals(joins: batch_lib.Joins) -> jax.Array:
  """[B, T] int32: segment ends before the position, over all earlier rows."""
  chunks = _Chunks(joins.segment_end_BT.shape)
  end_BCK = chunks.split(joins.segment_end_BT).astype(jnp.float32)
  # Counts below 2^24 are exact in float32, so a matrix product may count.
  before_KK = np.triu(np.ones((chunks.length,) * 2, np.float32), 1)
  within_BCK = end_BCK @ before_KK
  count_BC = jnp.sum(end_BCK, axis=-1).astype(jnp.int32)
  through = jnp.cumsum(count_BC.reshape(-1)).reshape(count_BC.shape)
  return chunks.merge(
      within_BCK.astype(jnp.int32) + (through - count_BC)[..., None]
  )


def by_ordinal(
    joins: batch_lib.Joins,
    ordinal_BT: jax.Array,
    tables: Sequence[jax.Array],
) -> list[jax.Array]:
  """Tables over N in the order of `segment_ordinals`.

  Segments without a transition have no place to be found by; nothing reads
  their entry.
  """
  size = joins.first_N.shape[0]
  ordinal_N = ordinal_BT.reshape(-1)[jnp.maximum(joins.first_N, 0)]
  ordinal_N = jnp.where(joins.first_N >= 0, ordinal_N, size)
  return [
      jnp.zeros_like(table_N).at[ordinal_N].set(table_N, mode='drop')
      for table_N in tables
  ]
