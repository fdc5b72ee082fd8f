"""Values along successful and failed rollouts, matched (C6).

Successes are shorter, easier or of another kind than failures, and a curve
over all of them shows that difference. So the same number of both is taken
from every cell of family, length and difficulty. On the host in float64, the
rollout is the unit.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from rl_tpu.metrics import diagnostics

LEVEL = 0.9
RESAMPLES = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Curves:
  """One rollout a row.

  Attributes:
    value: [r, 10] mean V in every tenth of j / N, NaN where it has no action.
    solved: [r] bool.
    cell: [r] what is matched on.
  """

  value: np.ndarray
  solved: np.ndarray
  cell: tuple[Hashable, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Band:
  """A mean curve and its interval over rollouts, [10] each; NaN: no value."""

  mean: np.ndarray
  low: np.ndarray
  high: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Matched:
  """C6 of one set of rollouts.

  Attributes:
    success: of the matched successes.
    failure: of as many failures.
    pairs: rollouts of each.
    dropped_cells: cells that hold only one of the two.
    dropped_rollouts: rollouts that found no partner, in whatever cell.
    first_deviation: first tenth whose intervals part; None if none does.
  """

  success: Band
  failure: Band
  pairs: int
  dropped_cells: int
  dropped_rollouts: int
  first_deviation: int | None


def difficulty(rate: float | None) -> str:
  """Bucket of a task's running success before the batch."""
  if rate is None:
    return 'unknown'
  if rate <= 0.0:
    return 'never'
  if rate >= 1.0:
    return 'always'
  return 'seldom' if rate < 0.5 else 'often'


def curves(
    table: diagnostics.CriticTable,
    solved: Mapping[str, bool | None],
    rate: Mapping[str, float | None],
) -> Curves:
  """The curve of every rollout of a table.

  Args:
    table: critic tokens, one row each.
    solved: outcome by rollout id; None leaves the rollout out.
    rate: running success of its task before the batch, by rollout id.
  """
  ids, first, inverse = np.unique(
      table.rollout, return_index=True, return_inverse=True
  )
  tenths = diagnostics.POSITION_BINS
  place = inverse * tenths + diagnostics.relative_position(table)
  size = len(ids) * tenths
  count = np.bincount(place, minlength=size)
  total = np.bincount(
      place, weights=np.asarray(table.value, np.float64), minlength=size
  )
  value = np.where(count > 0, total / np.maximum(count, 1), np.nan)
  value = value.reshape(len(ids), tenths)
  kept = [r for r, name in enumerate(ids) if solved.get(str(name)) is not None]
  names = [str(ids[r]) for r in kept]
  length = [int(np.log2(max(int(table.length[first[r]]), 1))) for r in kept]
  family = [str(table.family[first[r]]) for r in kept]
  return Curves(
      value=value[kept],
      solved=np.asarray([solved[name] for name in names], bool),
      cell=tuple(
          (family[k], length[k], difficulty(rate.get(name)))
          for k, name in enumerate(names)
      ),
  )


def match(
    solved: np.ndarray,
    cell: Sequence[Hashable],
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, int]:
  """Rows of as many successes as failures from every cell.

  Args:
    solved: [r] bool.
    cell: [r] what is matched on.
    rng: draws from the larger side of a cell.

  Returns:
    Rows of the successes, of the failures, and how many cells hold only one
    of the two.
  """
  members: dict[Hashable, tuple[list[int], list[int]]] = {}
  for row, (is_solved, key) in enumerate(zip(solved, cell)):
    members.setdefault(key, ([], []))[0 if is_solved else 1].append(row)
  taken: tuple[list[int], list[int]] = ([], [])
  dropped = 0
  for key in sorted(members, key=str):
    size = min(len(side) for side in members[key])
    dropped += size == 0
    for side, out in zip(members[key], taken):
      out.extend(rng.choice(side, size, replace=False).tolist() if size else [])
  success, failure = (np.asarray(rows, np.int64) for rows in taken)
  return success, failure, int(dropped)


def band(
    value: np.ndarray,
    rng: np.random.Generator,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Band:
  """Mean curve of some rollouts, and its interval by bootstrap over them.

  Args:
    value: [r, 10], NaN where a rollout has no value.
    rng: draws the resamples.
    resamples: of the rollouts, with replacement.
    level: coverage.
  """
  known = ~np.isnan(value)
  filled = np.where(known, value, 0.0)
  count = known.sum(axis=0)
  mean = np.where(count > 0, filled.sum(axis=0) / np.maximum(count, 1), np.nan)
  if not len(value):
    return Band(mean, mean, mean)
  # How often each rollout is drawn: one product instead of a gather.
  draws = rng.multinomial(
      len(value), np.full(len(value), 1.0 / len(value)), resamples
  ).astype(np.float64)
  drawn = draws @ known
  curve = np.where(drawn > 0, draws @ filled / np.maximum(drawn, 1.0), np.nan)
  tail = (1.0 - level) / 2.0
  low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
  for b in np.flatnonzero(count):
    seen = curve[drawn[:, b] > 0, b]
    low[b], high[b] = np.quantile(seen, (tail, 1.0 - tail))
  return Band(mean, low, high)


def first_deviation(success: Band, failure: Band) -> int | None:
  """The first tenth in which the intervals do not meet; None if none."""
  # Comparisons with NaN are False: a tenth without both curves never parts.
  apart = (success.low > failure.high) | (failure.low > success.high)
  places = np.flatnonzero(apart)
  return int(places[0]) if places.size else None


def compare(
    rollouts: Curves,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Matched:
  """Matches, then draws both curves with their intervals.

  With fewer than two pairs an interval has no width, and nothing deviates.
  """
  rng = np.random.default_rng(seed)
  success, failure, dropped = match(rollouts.solved, rollouts.cell, rng)
  bands = [
      band(rollouts.value[rows], rng, resamples=resamples, level=level)
      for rows in (success, failure)
  ]
  return Matched(
      success=bands[0],
      failure=bands[1],
      pairs=len(success),
      dropped_cells=dropped,
      dropped_rollouts=len(rollouts.solved) - 2 * len(success),
      first_deviation=first_deviation(*bands) if len(success) > 1 else None,
  )


def figures(found: Matched) -> dict[str, float | None]:
  """Both mean curves and what was matched, as tags."""
  values: dict[str, float | None] = {
      'critic/matched_pairs': float(found.pairs),
      'critic/matched_dropped_cells': float(found.dropped_cells),
      'critic/matched_dropped_rollouts': float(found.dropped_rollouts),
      'critic/first_deviation': (
          None
          if found.first_deviation is None
          else float(found.first_deviation)
      ),
  }
  for name in ('success', 'failure'):
    for b, value in enumerate(getattr(found, name).mean):
      if not np.isnan(value):
        values[f'slice/value_of_{name}/{b}'] = float(value)
  return values
