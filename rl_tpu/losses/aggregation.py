"""Fixed weights of a minibatch: what a token's loss is divided by (4.2, L8).

The weights are computed once from the masks of a whole minibatch, on the host
(`weights`), or on the device where gates decide on the masks
(`segment_weights`). Microbatches and devices then only add up.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.losses import by_id
from rl_tpu.types import batch as batch_lib

MODES = (
    'token',
    'segment_mean',
    'rollout_mean',
    'task_mean',
    'task_rollout_mean',
    'constant',
)


def weights(
    mask: np.ndarray,
    *,
    segment: np.ndarray,
    rollout: np.ndarray,
    task: np.ndarray,
    mode: str,
    constant: float | None = None,
) -> np.ndarray:
  """Weight of every token of one minibatch; 0 off the mask.

  Args:
    mask: bool, the tokens M that train.
    segment: dense segment id of every token, any value off the mask.
    rollout: dense rollout id of every token.
    task: dense task id of every token.
    mode: one of MODES.
    constant: L_const of mode `constant`.

  Returns:
    float32, the shape of `mask`.

  Raises:
    ValueError: a mode that does not exist.
  """
  if mode not in MODES:
    raise ValueError(
        f'loss.aggregation must be one of {", ".join(MODES)}, got {mode!r}.'
    )
  out = np.zeros(mask.shape, np.float64)
  segment, rollout, task = segment[mask], rollout[mask], task[mask]
  if not segment.size:
    return out.astype(np.float32)
  num_rollouts = np.unique(rollout).size
  if mode == 'token':
    weight = np.full(segment.shape, 1.0 / segment.size)
  elif mode == 'segment_mean':
    num_segments = np.unique(segment).size
    weight = 1.0 / (num_segments * _count_of(segment))
  elif mode == 'rollout_mean':
    weight = 1.0 / (num_rollouts * _count_of(rollout))
  elif mode == 'task_mean':
    weight = 1.0 / (np.unique(task).size * _count_of(task))
  elif mode == 'task_rollout_mean':
    # One row per (task, rollout) that has a token: how many of each task.
    first = np.unique(rollout, return_index=True)[1]
    per_task = np.bincount(task[first], minlength=int(task.max()) + 1)
    weight = 1.0 / (
        np.unique(task).size * per_task[task] * _count_of(rollout)
    )
  else:
    weight = np.full(segment.shape, 1.0 / (num_rollouts * constant))
  out[mask] = weight
  return out.astype(np.float32)


def _count_of(ids: np.ndarray) -> np.ndarray:
  """Number of tokens that share each token's id."""
  return np.bincount(ids)[ids].astype(np.float64)


def segment_weights(
    count_N: jax.Array,
    origin: batch_lib.Origin,
    *,
    mode: str,
    constant: float | None = None,
) -> jax.Array:
  """The same weights on the device, from counts by dense id (L8).

  Every weight of 4.2 is one number per segment, so the counts of a whole
  minibatch are all that microbatches and devices have to exchange.

  Args:
    count_N: tokens of M in every segment, added up over the minibatch.
    origin: rollout of every segment and task of every rollout.
    mode: one of MODES.
    constant: L_const of mode `constant`.

  Returns:
    float32 [N]; 0 for a segment without a token in M.

  Raises:
    ValueError: a mode that does not exist.
  """
  if mode not in MODES:
    raise ValueError(
        f'loss.aggregation must be one of {", ".join(MODES)}, got {mode!r}.'
    )
  tasks = origin.task_R.shape[0]
  count_R = by_id.rollout_sum(count_N, origin)
  rollouts = jnp.sum(count_R > 0, dtype=jnp.float32)
  task_R = lambda value_R: jnp.where(
      origin.task_R >= 0,
      by_id.table_sum(value_R, origin.task_R, size=tasks)[
          jnp.maximum(origin.task_R, 0)
      ],
      0.0,
  )
  at_N = lambda value_R: by_id.at_segments(value_R, origin)
  tasks_present = jnp.sum(
      by_id.table_sum(count_R, origin.task_R, size=tasks) > 0,
      dtype=jnp.float32,
  )
  if mode == 'token':
    divisor_N = jnp.broadcast_to(jnp.sum(count_N), count_N.shape)
  elif mode == 'segment_mean':
    divisor_N = jnp.sum(count_N > 0, dtype=jnp.float32) * count_N
  elif mode == 'rollout_mean':
    divisor_N = rollouts * at_N(count_R)
  elif mode == 'task_mean':
    divisor_N = tasks_present * at_N(task_R(count_R))
  elif mode == 'task_rollout_mean':
    members_R = task_R((count_R > 0).astype(jnp.float32))
    divisor_N = tasks_present * at_N(members_R * count_R)
  else:
    divisor_N = jnp.broadcast_to(rollouts * constant, count_N.shape)
  # Nothing left in M gives no loss, not NaN (L9).
  is_used_N = count_N > 0
  return jnp.where(is_used_N, 1.0 / jnp.where(is_used_N, divisor_N, 1.0), 0.0)
