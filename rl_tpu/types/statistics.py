"""Count, mean and spread of numbers, merged over batches (G15, G17, D1)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Statistics:
  """What is kept of the numbers of one source.

  Attributes:
    count: numbers seen.
    mean: their mean.
    squared_deviation: sum of (x - mean)^2.
    raw: numbers that were left as they are, for want of statistics.
  """

  count: int = 0
  mean: float = 0.0
  squared_deviation: float = 0.0
  raw: int = 0

  @property
  def std(self) -> float:
    """Population standard deviation; 0 where nothing was seen."""
    return math.sqrt(self.squared_deviation / self.count) if self.count else 0.0


Running = dict[str, Statistics]


def is_degenerate(std: float, values: np.ndarray, *, floor: float) -> bool:
  """G15: the spread of `values` is rounding, nothing that can be learnt from.

  The one comparator of every floor: std <= floor * max(1, max |x|).
  """
  largest = float(np.max(np.abs(values))) if len(values) else 0.0
  return float(std) <= floor * max(1.0, largest)


def measure(values: np.ndarray) -> Statistics:
  """Statistics of some values, in two passes (G15)."""
  values = np.asarray(values, np.float64)
  if not values.size:
    return Statistics()
  mean = float(np.mean(values))
  deviation = float(np.sum(np.square(values - mean)))
  return Statistics(int(values.size), mean, deviation)


def merge(earlier: Statistics, later: Statistics) -> Statistics:
  """Statistics of both, as if they had been measured together.

  Values that are not finite are not taken in: the update they belong to is
  skipped and reported (L18), and the statistics would never recover.
  """
  finite = math.isfinite(later.mean) and math.isfinite(later.squared_deviation)
  if not later.count or not finite:
    return earlier
  count = earlier.count + later.count
  gap = later.mean - earlier.mean
  return Statistics(
      count=count,
      mean=earlier.mean + gap * later.count / count,
      squared_deviation=(
          earlier.squared_deviation
          + later.squared_deviation
          + gap * gap * earlier.count * later.count / count
      ),
      raw=earlier.raw + later.raw,
  )


def state(running: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
  """The statistics as JSON, for the checkpoint (O7)."""
  return {name: dataclasses.asdict(found) for name, found in running.items()}


def from_state(content: Mapping[str, Mapping[str, Any]]) -> Running:
  """The inverse of `state`."""
  return {name: Statistics(**found) for name, found in content.items()}
