"""How old the data of a batch is (O1)."""

import dataclasses

import numpy as np

Figures = dict[str, float | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Ages:
  """Ages of one batch.

  Attributes:
    gap: [n] per trained token, current version less the sampling one.
    rollout: [n] rollout of each of them, 0 .. r - 1.
    oldest: [r] gap of every rollout's oldest sampled token.
    waited: [r] seconds from its end to its update.
    length: [r] bucket of its sampled tokens, named by its lower bound.
  """

  gap: np.ndarray
  rollout: np.ndarray
  oldest: np.ndarray
  waited: np.ndarray
  length: np.ndarray


def figures(ages: Ages) -> Figures:
  """Version gaps and waits, of the batch and by length bucket."""
  found = _of(ages.gap, ages.oldest, ages.waited)
  for bucket in np.unique(ages.length).tolist():
    member = ages.length == bucket
    part = _of(
        ages.gap[member[ages.rollout]],
        ages.oldest[member],
        ages.waited[member],
    )
    for name, value in part.items():
      group, rest = name.split('/', 1)
      found[f'slice/{group}_{rest}_by_length/{bucket}'] = value
  return found


def _of(gap: np.ndarray, oldest: np.ndarray, waited: np.ndarray) -> Figures:
  found: Figures = {}
  if gap.size:
    found['policy/version_gap_mean'] = float(np.mean(gap, dtype=np.float64))
    found['policy/version_gap_max'] = float(gap.max())
  if oldest.size:
    found['policy/version_gap_oldest_mean'] = float(
        np.mean(oldest, dtype=np.float64)
    )
    found['rollout/queue_wait_mean'] = float(np.mean(waited))
    found['rollout/queue_wait_max'] = float(np.max(waited))
  return found


def length_bucket(count: np.ndarray) -> np.ndarray:
  """Lower bound of the power-of-two bucket of a count; 0 for 0."""
  count = np.asarray(count, np.int64)
  power = np.log2(np.maximum(count, 1)).astype(int)
  return np.where(count > 0, 1 << power, 0)


def importance(log_ratio: np.ndarray) -> Figures:
  """KL of the behaviour to the policy and the effective sample size.

  Args:
    log_ratio: [n] log pi - log mu of tokens sampled from mu.

  Returns:
    k1 = mean(-x), k3 = mean(exp(x) - 1 - x) and (sum w)^2 / (n sum w^2) with
    w = exp(x); x is clipped to [-20, 20] inside exp only.
  """
  x = np.asarray(log_ratio, np.float64)
  if not x.size:
    return {}
  bounded = np.clip(x, -20.0, 20.0)
  weight = np.exp(bounded)
  return {
      'policy/kl_behaviour_k1': float(-x.mean()),
      'policy/kl_behaviour_k3': float((np.expm1(bounded) - x).mean()),
      'policy/ess_behaviour': float(
          weight.sum() ** 2 / (x.size * np.square(weight).sum())
      ),
  }


def importance_by_length(
    log_ratio: np.ndarray, length: np.ndarray
) -> Figures:
  """The same by the length bucket of each token's rollout."""
  found: Figures = {}
  for bucket in np.unique(length).tolist():
    for name, value in importance(log_ratio[length == bucket]).items():
      rest = name.split('/', 1)[1]
      found[f'slice/policy_{rest}_by_length/{bucket}'] = value
  return found
