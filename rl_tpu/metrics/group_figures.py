"""What groups of rollouts can teach (E8)."""

import dataclasses
import numbers
from collections.abc import Sequence

import numpy as np

from rl_tpu.types import statistics

Figures = dict[str, float | None]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One subgroup of comparable rollouts, after section 2 and E7.

  Attributes:
    family: task family.
    returns: return of every member (E2).
    solved: what success says of every member; None where it says nothing.
    rate: the task's running success before this batch; None if it is unknown.
  """

  family: str
  returns: tuple[float, ...]
  solved: tuple[bool | None, ...]
  rate: float | None = None


def p_mix(p: float, size: int) -> float:
  """1 - p^G - (1 - p)^G: chance that G independent outcomes are not all equal.

  It is a probability of a difference, not a forecast of learning.

  Args:
    p: success probability of one rollout; of earlier batches, because the
      share of the same group is biased (E8).
    size: G, rollouts of the group.

  Raises:
    ValueError: p outside [0, 1], or a size that is no positive whole number.
  """
  is_whole = isinstance(size, numbers.Integral) and not isinstance(size, bool)
  if not is_whole or size < 1:
    raise ValueError(f'group size {size!r}: it must be a whole number above 0.')
  if isinstance(p, bool) or not 0.0 <= p <= 1.0:
    raise ValueError(f'success probability {p!r}: it must be in [0, 1].')
  return 1.0 - float(p) ** size - (1.0 - float(p)) ** size


def figures(groups: Sequence[Comparison], *, std_floor: float) -> Figures:
  """All figures of E8, of the batch and of every task family."""
  out = {f'group/{n}': v for n, v in _of(groups, std_floor).items()}
  for family in sorted({group.family for group in groups}):
    here = [group for group in groups if group.family == family]
    for name, value in _of(here, std_floor).items():
      out[f'group/family/{family}/{name}'] = value
  return out


def kind(returns: Sequence[float], *, std_floor: float) -> str:
  """all_zero, all_one, other_flat (no spread, another number) or mixed."""
  values = np.asarray(returns, np.float64)
  if not statistics.is_degenerate(np.std(values), values, floor=std_floor):
    return 'mixed'
  mean = float(np.mean(values))
  if abs(mean) <= std_floor:
    return 'all_zero'
  return 'all_one' if abs(mean - 1.0) <= std_floor else 'other_flat'


def _of(groups: Sequence[Comparison], std_floor: float) -> Figures:
  if not groups:
    return {}
  kinds = [kind(group.returns, std_floor=std_floor) for group in groups]
  sizes = [len(group.returns) for group in groups]
  expected = [
      p_mix(group.rate, size)
      for group, size in zip(groups, sizes)
      if group.rate is not None
  ]
  outcomes = [
      {bool(s) for s in group.solved if s is not None} for group in groups
  ]
  out: Figures = {
      name: _mean([k == name for k in kinds])
      for name in ('all_zero', 'all_one', 'other_flat', 'mixed')
  }
  out['zero_spread'] = _mean([k != 'mixed' for k in kinds])
  out['mixed_solved'] = _mean([len(found) == 2 for found in outcomes])
  out['p_mix'] = _mean(expected) if expected else None
  out['p_mix_known'] = len(expected) / len(groups)
  out['effective_size'] = _mean(sizes)
  useful = sum(n for n, k in zip(sizes, kinds) if k == 'mixed')
  out['useful_members'] = useful / sum(sizes)
  return out


def _mean(values: Sequence[float]) -> float:
  return float(np.mean(np.asarray(values, np.float64)))
