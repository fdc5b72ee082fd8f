"""What the critic is worth, and how far sampler and trainer are apart.

Everything runs on the host in float64 after one gather of per-action numbers
(C14). None stands for undefined, never 0 or an infinity.
"""

import dataclasses
from collections.abc import Hashable, Mapping

import numpy as np

STD_FLOOR = 1e-6
POSITION_BINS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class CriticTable:
  """Predictions and targets of critic tokens, one row a token.

  Attributes:
    value: [n] V_j of the recursion.
    target: [n] R_j, the critic's target.
    rollout: [n] rollout ids.
    action_index: [n] j, the place among the rollout's actions (V1).
    length: [n] actions of the rollout.
    bootstrapped: [n] bool: the rollout's end is bootstrapped, so its targets
      contain V_N.
    termination: [n] kinds of the rollouts' ends.
    source: [n] task sources.
    family: [n] task families.
    advantage: [n] A_j before normalisation; None where it is not known, like
      the following.
    delta: [n] TD residuals.
    gap: [n] current policy version less the one that sampled the token (C2).
    at_cut: [n] bool: the last action before another segment.
  """

  value: np.ndarray
  target: np.ndarray
  rollout: np.ndarray
  action_index: np.ndarray
  length: np.ndarray
  bootstrapped: np.ndarray
  termination: np.ndarray
  source: np.ndarray
  family: np.ndarray
  advantage: np.ndarray | None = None
  delta: np.ndarray | None = None
  gap: np.ndarray | None = None
  at_cut: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.value)

  def where(self, keep: np.ndarray) -> 'CriticTable':
    """The rows in which `keep` is True."""
    columns = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return CriticTable(
        **{
            name: None if column is None else np.asarray(column)[keep]
            for name, column in columns.items()
        }
    )


@dataclasses.dataclass(frozen=True)
class CalibrationBin:
  """One bin of C5; means are None where it is empty.

  Attributes:
    count: tokens in it.
    weight: sum of the rollout weights 1/(B * n_ro).
    mean_value: mean prediction.
    mean_return: mean target.
    mean_value_rollout: mean prediction under the rollout weights.
    mean_return_rollout: mean target under the rollout weights.
  """

  count: int
  weight: float
  mean_value: float | None
  mean_return: float | None
  mean_value_rollout: float | None
  mean_return_rollout: float | None


@dataclasses.dataclass(frozen=True)
class Calibration:
  """C5: the bins, and the mean absolute difference by count and by weight."""

  bins: tuple[CalibrationBin, ...]
  ece: float | None
  ece_rollout: float | None


def degenerate(
    values: np.ndarray, std: float, floor: float = STD_FLOOR
) -> bool:
  """G15's one comparator: std <= floor * max(1, max|x|)."""
  return bool(std <= floor * max(1.0, float(np.max(np.abs(values)))))


def explained_variance(
    target: np.ndarray,
    value: np.ndarray,
    weight: np.ndarray | None = None,
) -> float | None:
  """C3: 1 - Var(R - V) / Var(R); None if R is degenerate or absent.

  Args:
    target: [n] returns R.
    value: [n] predictions V.
    weight: [n] weights of every mean inside both variances; None is equal.
  """
  target = np.asarray(target, np.float64)
  error = target - np.asarray(value, np.float64)
  if not target.size:
    return None
  variance = _variance(target, weight)
  if degenerate(target, float(np.sqrt(variance))):
    return None
  return float(1.0 - _variance(error, weight) / variance)


def _variance(values: np.ndarray, weight: np.ndarray | None) -> float:
  mean = np.average(values, weights=weight)
  return float(np.average((values - mean) ** 2, weights=weight))


def rollout_weights(rollout: np.ndarray) -> np.ndarray:
  """1 / (B * n_ro) per token: every rollout counts alike."""
  rollout = np.asarray(rollout)
  if not rollout.size:
    return np.zeros(0)
  _, inverse, counts = np.unique(
      rollout, return_inverse=True, return_counts=True
  )
  return 1.0 / (len(counts) * counts[inverse])


def calibration(
    table: CriticTable, *, bins: int = POSITION_BINS
) -> Calibration:
  """C5: equal-count bins of sorted predictions.

  Bin b holds the sorted items floor(b * n / bins) up to, and without,
  floor((b + 1) * n / bins). Ties are ordered by rollout id and action.
  """
  order = np.lexsort(
      (table.action_index, np.asarray(table.rollout, str), table.value)
  )
  weight = rollout_weights(table.rollout)
  n = len(table)
  made = []
  for b in range(bins):
    items = order[b * n // bins : (b + 1) * n // bins]
    made.append(_bin(table.value[items], table.target[items], weight[items]))
  return Calibration(
      bins=tuple(made),
      ece=_gap(made, 'count', 'mean_value', 'mean_return'),
      ece_rollout=_gap(
          made, 'weight', 'mean_value_rollout', 'mean_return_rollout'
      ),
  )


def _bin(
    value: np.ndarray, target: np.ndarray, weight: np.ndarray
) -> CalibrationBin:
  if not value.size:
    return CalibrationBin(0, 0.0, None, None, None, None)
  return CalibrationBin(
      count=int(value.size),
      weight=float(weight.sum()),
      mean_value=float(value.mean()),
      mean_return=float(target.mean()),
      mean_value_rollout=float(np.average(value, weights=weight)),
      mean_return_rollout=float(np.average(target, weights=weight)),
  )


def _gap(
    bins: list[CalibrationBin], size: str, value: str, target: str
) -> float | None:
  filled = [b for b in bins if b.count]
  if not filled:
    return None
  gaps = [abs(getattr(b, value) - getattr(b, target)) for b in filled]
  return float(np.average(gaps, weights=[getattr(b, size) for b in filled]))


@dataclasses.dataclass(frozen=True)
class Errors:
  """C4: bias mean(V - R) and mean squared error of some tokens."""

  bias: float
  mse: float
  count: int


def errors(table: CriticTable) -> Errors | None:
  """Bias and mean squared error of all rows; None if there are none."""
  if not len(table):
    return None
  error = np.asarray(table.value, float) - np.asarray(table.target, float)
  return Errors(float(error.mean()), float((error**2).mean()), len(error))


def errors_by(table: CriticTable, key: np.ndarray) -> Mapping[Hashable, Errors]:
  """C4: the same for every value of a key column."""
  found = {}
  for name in np.unique(key):
    found[name.item()] = errors(table.where(key == name))
  return found


def relative_position(table: CriticTable) -> np.ndarray:
  """[n] bucket 0..9 of j / N."""
  place = POSITION_BINS * table.action_index // np.maximum(table.length, 1)
  return np.minimum(place, POSITION_BINS - 1).astype(int)


def absolute_position(table: CriticTable) -> np.ndarray:
  """[n] bucket of the action index by powers of 2: 0, 1, 2-3, 4-7, ..."""
  index = np.asarray(table.action_index, np.int64)
  return np.where(index > 0, np.log2(np.maximum(index, 1)).astype(int) + 1, 0)


def critic_figures(table: CriticTable) -> dict[str, float | None]:
  """C3 and C5 of one set of tokens, bias and MSE, as tags."""
  bootstrapped = np.asarray(table.bootstrapped, bool)
  scored = table.where(~bootstrapped)
  whole = errors(table)
  curve = calibration(table)
  figures: dict[str, float | None] = {
      'critic/explained_variance': explained_variance(
          table.target, table.value
      ),
      'critic/explained_variance_rollout': explained_variance(
          table.target, table.value, rollout_weights(table.rollout)
      ),
      'critic/explained_variance_scored': explained_variance(
          scored.target, scored.value
      ),
      'critic/bias': whole.bias if whole else None,
      'critic/mse': whole.mse if whole else None,
      'critic/ece': curve.ece,
      'critic/ece_rollout': curve.ece_rollout,
      # Targets of bootstrapped ends contain V_N: shown apart (C5).
      'critic/ece_scored': calibration(scored).ece,
      'critic/ece_bootstrapped': calibration(table.where(bootstrapped)).ece,
      'critic/anchored_share': len(scored) / len(table) if whole else None,
  }
  return figures


def alignment(
    behaviour_logp: np.ndarray, trainer_logp: np.ndarray
) -> dict[str, float | None]:
  """O4: how far the trainer's log-probs are from the sampler's.

  Args:
    behaviour_logp: [n] the sampler's.
    trainer_logp: [n] the trainer's, of the same tokens under the same weights.

  Returns:
    max_abs, mean_abs, k1 = mean(-d) and k3 = mean(exp(d) - 1 - d) with
    d = trainer - sampler, clipped to [-20, 20] inside exp only.
  """
  gap = np.asarray(trainer_logp, float) - np.asarray(behaviour_logp, float)
  if not gap.size:
    return {'max_abs': None, 'mean_abs': None, 'k1': None, 'k3': None}
  return {
      'max_abs': float(np.abs(gap).max()),
      'mean_abs': float(np.abs(gap).mean()),
      'k1': float(-gap.mean()),
      'k3': float((np.expm1(np.clip(gap, -20.0, 20.0)) - gap).mean()),
  }
