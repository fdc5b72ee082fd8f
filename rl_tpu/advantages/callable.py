"""Generalised advantage estimation as a plain function (G31).

For one time axis of lists or arrays, such as the steps of an environment with
Gymnasium's flags; no device, no jit. `advantages.gae` is the trainer's path,
and both agree on unpacked data.
"""

from collections.abc import Sequence

import numpy as np


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    next_values: Sequence[float],
    terminated: Sequence[bool],
    truncated: Sequence[bool],
    gamma: float,
    trace_decay: float,
) -> list[float]:
  """Advantages of steps in time order (1506.02438).

      delta_t = r_t + gamma * (0 if terminated_t else next_values_t) - V_t
      A_t     = delta_t + gamma * trace_decay * (0 if ended_t else A_{t+1})

  A step that is terminated and truncated at once is terminated (T9). A cut
  between two segments of one rollout sets neither flag.

  Args:
    rewards: reward of each step.
    values: value of the state each step started from.
    next_values: value of the state each step reached; at a truncation that
      of the observation the step returned, never of the one `reset` returned
      afterwards (K07). Not read where the step is terminated.
    terminated: the step ended the task.
    truncated: the step was the last one for a reason outside the task.
    gamma: discount per step.
    trace_decay: lambda.

  Returns:
    The advantage of each step.

  Raises:
    ValueError: arguments of different length, or a value of a reached state
      that is needed and not known (None or NaN).
  """
  rewards, values, next_values = (
      np.asarray(x, np.float64) for x in (rewards, values, next_values)
  )
  terminated, truncated = (np.asarray(x, bool) for x in (terminated, truncated))
  lengths = [
      x.shape for x in (rewards, values, next_values, terminated, truncated)
  ]
  if len(set(lengths)) > 1 or rewards.ndim != 1:
    raise ValueError(
        'rewards, values, next_values, terminated and truncated must be flat'
        f' and of equal length, got shapes {lengths}.'
    )
  unknown = np.flatnonzero(np.isnan(next_values) & ~terminated)
  if unknown.size:
    raise ValueError(
        f'next_values[{unknown[0]}] is not known, and the step did not'
        ' terminate: give the value of the state that the step reached.'
    )
  reached = np.where(terminated, 0.0, next_values)
  deltas = (rewards + gamma * reached - values).tolist()
  ended = (terminated | truncated).tolist()
  advantages, later = [0.0] * len(deltas), 0.0
  for step in reversed(range(len(deltas))):
    later = deltas[step] + gamma * trace_decay * (0.0 if ended[step] else later)
    advantages[step] = later
  return advantages
