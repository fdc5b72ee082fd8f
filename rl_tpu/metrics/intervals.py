"""Bootstrap intervals whose unit is the task (A3, A4)."""

from collections.abc import Mapping, Sequence

import numpy as np

Scores = Mapping[str, float | Sequence[float]]
Interval = tuple[float, float, float]

_CHUNK = 1 << 20


def task_bootstrap(
    scores: Scores,
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
    resample_index: np.ndarray | None = None,
) -> Interval:
  """Mean over tasks of the task's mean score, with its interval.

  Args:
    scores: task id -> one score, or the scores of its rollouts.
    resamples: B of A3.
    seed: of the resampling; it goes into the report.
    level: coverage.
    resample_index: rows of indices into the sorted task ids, instead of drawn
      ones.

  Returns:
    Point, low and high; NaN each where there is no task.
  """
  means = task_means(scores)
  if not means.size:
    return (np.nan, np.nan, np.nan)
  if resample_index is not None:
    draws = means[np.asarray(resample_index)].mean(axis=1)
  else:
    draws = _resampled_means(means, resamples, np.random.default_rng(seed))
  return _interval(means.mean(), draws, level)


def paired_bootstrap(
    left: Scores,
    right: Scores,
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
) -> Interval:
  """Interval of the difference left - right on the same tasks (A4).

  Raises:
    ValueError: the two arms have different tasks.
  """
  if set(left) != set(right):
    odd = sorted(set(left) ^ set(right))[0]
    raise ValueError(
        f'a paired interval needs the same tasks in both arms: {odd} is in one'
        ' only.'
    )
  difference = task_means(left) - task_means(right)
  return task_bootstrap(
      dict(zip(sorted(left), difference.tolist())),
      resamples=resamples,
      seed=seed,
      level=level,
  )


def seed_bootstrap(
    scores_by_seed: Sequence[Scores],
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
) -> Interval:
  """Interval over training seeds, and tasks within each seed (A3).

  Args:
    scores_by_seed: per training seed, task id -> scores.
    resamples: B of A3.
    seed: of the resampling.
    level: coverage.
  """
  means = [task_means(scores) for scores in scores_by_seed]
  rng = np.random.default_rng(seed)
  draws = np.zeros((len(means), resamples))
  for place in draws:
    drawn = rng.integers(len(means), size=resamples)
    for index, tasks in enumerate(means):
      chosen = drawn == index
      place[chosen] = _resampled_means(tasks, int(chosen.sum()), rng)
  point = float(np.mean([m.mean() for m in means]))
  return _interval(point, draws.mean(axis=0), level)


def task_means(scores: Scores) -> np.ndarray:
  """The mean score of each task, in the order of the sorted ids, float64."""
  means = [np.mean(np.asarray(scores[task], float)) for task in sorted(scores)]
  return np.array(means, np.float64)


def _resampled_means(
    means: np.ndarray, resamples: int, rng: np.random.Generator
) -> np.ndarray:
  rows = max(1, _CHUNK // means.size)
  parts = []
  for start in range(0, resamples, rows):
    size = (min(rows, resamples - start), means.size)
    parts.append(means[rng.integers(means.size, size=size)].mean(axis=1))
  return np.concatenate(parts) if parts else np.zeros(0)


def _interval(point: float, draws: np.ndarray, level: float) -> Interval:
  tail = (1.0 - level) / 2.0
  low, high = np.quantile(draws, (tail, 1.0 - tail))
  return float(point), float(low), float(high)
