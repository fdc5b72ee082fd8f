"""What each task source brings to a batch (D1, D4, G18)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

Figures = dict[str, float | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
  """A batch's numbers in flat form.

  Attributes:
    sources: names that the indices stand for.
    rollout_source: source of every rollout.
    tokens: stored tokens of every rollout.
    raw_return: return of every rollout before normalisation.
    normalised: the same after it.
    token_source: source of every policy token.
    raw_advantage: advantage of every policy token before `advantage.norm`.
    advantage: the same after it.
  """

  sources: Sequence[str]
  rollout_source: np.ndarray
  tokens: np.ndarray
  raw_return: np.ndarray
  normalised: np.ndarray
  token_source: np.ndarray
  raw_advantage: np.ndarray
  advantage: np.ndarray


def figures(columns: Columns) -> Figures:
  """Counts and scales of every source.

  The pull of a source on the parameters is the update's own figure (L18).
  """
  out: Figures = {}
  for index, name in enumerate(columns.sources):
    rollouts = columns.rollout_source == index
    tokens = columns.token_source == index
    out[f'rollout/source_rollouts/{name}'] = float(rollouts.sum())
    out[f'rollout/source_tokens/{name}'] = float(columns.tokens[rollouts].sum())
    out |= _spread('reward/{}/' + name, columns.raw_return[rollouts])
    out |= _spread('reward/normalised_{}/' + name, columns.normalised[rollouts])
    out |= _spread('adv/source_{}/' + name, columns.raw_advantage[tokens])
    out |= _spread(
        'adv/source_normalised_{}/' + name, columns.advantage[tokens]
    )
  return out


def _spread(pattern: str, values: np.ndarray) -> Figures:
  values = np.asarray(values, np.float64)
  if not values.size:
    return {}
  return {
      pattern.format(figure): float(getattr(values, figure)())
      for figure in ('mean', 'std', 'min', 'max')
  }
