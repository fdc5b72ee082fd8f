"""Fixed weights of a minibatch: what a token's loss is divided by (4.2, L8).

The weights are computed once, on the host, from the masks of a whole
minibatch. Microbatches and devices then only add up.
"""

import numpy as np

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
    constant: float = 1.0,
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
