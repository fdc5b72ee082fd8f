"""Sums over the tokens of a segment, rollout or task by dense id (L8, L20).

Token sums go to segments first; rollouts and tasks are sums of that small
table. The per-token arrays never leave their device: only tables are reduced.
"""

import jax
import jax.numpy as jnp

from rl_tpu.types import batch as batch_lib


def segment_sum(
    value_BT: jax.Array,
    mask_BT: jax.Array,
    segment_BT: jax.Array,
    *,
    size: int,
) -> jax.Array:
  """Sum of `value` over the masked tokens of every segment, float32 [N]."""
  used_BT = mask_BT & (segment_BT >= 0)
  return jax.ops.segment_sum(
      jnp.where(used_BT, value_BT, 0.0).astype(jnp.float32).reshape(-1),
      # An id beyond the table is dropped.
      jnp.where(used_BT, segment_BT, size).reshape(-1),
      num_segments=size,
  )


def table_sum(value: jax.Array, ids: jax.Array, *, size: int) -> jax.Array:
  """Sum of a table's entries by the id of each; ids below 0 are dropped."""
  return jax.ops.segment_sum(
      value.astype(jnp.float32), jnp.where(ids < 0, size, ids),
      num_segments=size,
  )


def rollout_sum(value_N: jax.Array, origin: batch_lib.Origin) -> jax.Array:
  """Sums of segments as sums of rollouts [R]."""
  return table_sum(value_N, origin.rollout_N, size=origin.task_R.shape[0])


def at_segments(value_R: jax.Array, origin: batch_lib.Origin) -> jax.Array:
  """The rollout's entry at every segment; 0 in the table's padding."""
  return jnp.where(
      origin.rollout_N >= 0, value_R[jnp.maximum(origin.rollout_N, 0)], 0.0
  )


def at_tokens(value_N: jax.Array, segment_BT: jax.Array) -> jax.Array:
  """The segment's entry at every token; 0 in padding."""
  return jnp.where(segment_BT >= 0, value_N[jnp.maximum(segment_BT, 0)], 0.0)


def mean(total: jax.Array, count: jax.Array) -> jax.Array:
  """total / count, 0 where nothing was counted (L9)."""
  return jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), 0.0)
