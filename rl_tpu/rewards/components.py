"""Weighted sums of reward components (R9, D2).

A component is a name with raw values at (segment, position). `terminal` is
the verifier's score: it has a weight like the others, and no position.
"""

from collections.abc import Mapping, Sequence

import numpy as np

TERMINAL = 'terminal'

Components = Mapping[str, Sequence[tuple[int, int, float]]]


def position_rewards(
    components: Components,
    weights: Mapping[str, float],
    lengths: Mapping[int, int],
) -> dict[int, np.ndarray]:
  """Reward of every position: sum of weight * raw value, without `terminal`.

  Args:
    components: raw values by name.
    weights: weight by name; a name without one counts 0 (and is logged raw).
    lengths: tokens of each stored segment, by segment index.

  Returns:
    float64 rewards by segment index.

  Raises:
    ValueError: a value at a place that does not exist.
  """
  rewards = {k: np.zeros(n, np.float64) for k, n in lengths.items()}
  for name, places in components.items():
    if name == TERMINAL:
      continue
    weight = float(weights.get(name, 0.0))
    for segment, position, value in places:
      if not 0 <= position < lengths.get(segment, 0):
        raise ValueError(
            f'reward component {name!r} names segment {segment}, position'
            f' {position}, which does not exist.'
        )
      # Weight 0 keeps a raw value out, even one that is not finite.
      if weight:
        rewards[segment][position] += weight * float(value)
  return rewards


def terminal_reward(raw: float | None, weights: Mapping[str, float]) -> float:
  """weight * score that enters the return once, at the last action (G6).

  A mapping that does not name `terminal` weighs it 1: leaving the outcome out
  takes an explicit 0.
  """
  weight = float(weights.get(TERMINAL, 1.0))
  return 0.0 if raw is None or not weight else weight * float(raw)


def weights_in_force(
    weights: Mapping[str, float],
    *,
    constrained: Sequence[str],
    succeeded: bool,
) -> dict[str, float]:
  """Weights of one rollout under `reward.mode = lexicographic` (D2).

  Format and cost terms order the rollouts that reached the goal cleanly; they
  cannot make up for a goal that was missed.

  Args:
    weights: weight by name.
    constrained: names of the format and cost terms.
    succeeded: the rollout reached its goal and violated nothing.
  """
  withheld = () if succeeded else constrained
  return {name: w for name, w in weights.items() if name not in withheld}


def raw_sums(components: Components) -> dict[str, float]:
  """Sum of the raw values of each component, for logs (D2)."""
  return {
      name: float(sum(value for _, _, value in places))
      for name, places in components.items()
  }
