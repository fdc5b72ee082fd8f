"""What the critic's errors and the advantages depend on (C2, C4).

One mean per figure, division and bucket, on the host in float64 (C14).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_tpu.metrics import diagnostics

Figures = dict[str, float | None]

# Gaps up to here have a bucket each, larger ones share it.
LARGEST_GAP = 16


def means(key: np.ndarray, **columns: np.ndarray) -> dict[Any, Figures]:
  """Mean of every column over the rows of every key, and their count.

  Args:
    key: [n] the bucket of every row.
    **columns: [n] numbers by name.
  """
  names, inverse = np.unique(key, return_inverse=True)
  count = np.bincount(inverse, minlength=len(names))
  sums = {
      name: np.bincount(
          inverse, weights=np.asarray(column, np.float64), minlength=len(names)
      )
      for name, column in columns.items()
  }
  found = {'count': count} | {n: total / count for n, total in sums.items()}
  return {
      name.item(): {n: float(column[place]) for n, column in found.items()}
      for place, name in enumerate(names)
  }


def divisions(table: diagnostics.CriticTable) -> dict[str, np.ndarray]:
  """The keys of C4: a column of bucket names each."""
  power = diagnostics.absolute_position(table)
  # A bucket of indices is named by its lower bound: 0, 1, 2, 4, 8, ...
  lower = np.where(power > 0, 1 << np.maximum(power - 1, 0), 0)
  return {
      'position': diagnostics.relative_position(table),
      'index': lower,
      'source': table.source,
      'family': table.family,
      'end': table.termination,
  }


def figures(table: diagnostics.CriticTable) -> Figures:
  """C4: bias, MSE, V, advantage and delta by every division."""
  if not len(table):
    return {}
  error = np.asarray(table.value, float) - np.asarray(table.target, float)
  columns = {'bias': error, 'mse': error**2, 'value': table.value}
  for name in ('advantage', 'delta'):
    if getattr(table, name) is not None:
      columns[name] = getattr(table, name)
  found: Figures = {}
  for division, key in divisions(table).items():
    for bucket, row in means(key, **columns).items():
      for name in columns:
        found[f'slice/{name}_by_{division}/{bucket}'] = row[name]
  return found


def lag(table: diagnostics.CriticTable) -> Figures:
  """C2: the critic's errors by how old the token is.

  The gap is the actor's current version less the version that sampled the
  token.
  """
  if not len(table) or table.gap is None:
    return {}
  gap = np.minimum(np.asarray(table.gap, np.int64), LARGEST_GAP)
  value = np.asarray(table.value, np.float64)
  target = np.asarray(table.target, np.float64)
  found: Figures = {}
  for bucket in np.unique(gap).tolist():
    here = gap == bucket
    error = value[here] - target[here]
    found[f'slice/bias_by_gap/{bucket}'] = float(error.mean())
    found[f'slice/mse_by_gap/{bucket}'] = float((error**2).mean())
    found[f'slice/explained_variance_by_gap/{bucket}'] = (
        diagnostics.explained_variance(target[here], value[here])
    )
    found[f'slice/tokens_by_gap/{bucket}'] = float(here.sum())
  return found


def at_cuts(table: diagnostics.CriticTable) -> Figures:
  """C4: the TD residual where a window ends: what a bad summary costs."""
  if table.at_cut is None or table.delta is None:
    return {}
  here = np.asarray(table.at_cut, bool)
  if not here.any():
    return {}
  delta = np.asarray(table.delta, np.float64)[here]
  return {
      'critic/delta_cut': float(delta.mean()),
      'critic/delta_cut_abs': float(np.abs(delta).mean()),
  }


def under(prefix: str, values: Mapping[str, float | None]) -> Figures:
  """The same figures of another set of tokens: `group/prefix/figure`."""
  moved = {}
  for name, value in values.items():
    group, rest = name.split('/', 1)
    moved[f'{group}/{prefix}/{rest}'] = value
  return moved
