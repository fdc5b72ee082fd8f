"""What the rewards of one rollout come to: weights, mode, scale (D1, D2)."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from rl_tpu.config import schema
from rl_tpu.metrics import summary
from rl_tpu.records import records
from rl_tpu.rewards import components
from rl_tpu.rewards import scaling
from rl_tpu.types import termination as term

# Asking is no violation; an attempt that was denied, or an act that cannot be
# taken back, is one (A7).
_HARMLESS_EVENTS = ('approval_request',)


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
  """The rewards of a rollout as they are trained on.

  Attributes:
    score: weighted terminal reward in use, normalised; 0 where none is (T2).
    raw_score: the same before normalisation.
    scale: of all its rewards.
    weights: of the components, in force for this rollout; None takes what
      the record says.
    rewards: weighted reward of every position by stored segment, before
      normalisation; None where the record's are in force.
  """

  score: float
  raw_score: float
  scale: scaling.Scale = scaling.Scale()
  weights: Mapping[str, float] | None = None
  rewards: tuple[np.ndarray, ...] | None = None


def score(
    rollout: records.Rollout,
    verdict: term.Verdict,
    *,
    reward: schema.RewardConfig | None,
    scales: scaling.Scales | None,
) -> Scored:
  """Applies `reward.weights`, `reward.mode` and `reward.norm`.

  Args:
    rollout: a record whose rewards passed R9.
    verdict: of the termination table; names the score in use.
    reward: None takes rewards and score as the record has them.
    scales: of the run; None leaves the scale alone.
  """
  if reward is None:
    raw = 0.0 if verdict.score is None else float(verdict.score)
    return Scored(raw, raw)
  scale = scaling.Scale()
  if scales is not None:
    scale = scales.of(rollout.source, rollout.verifier_id)
  weights, rewards = reward.weights, None
  if reward.mode == 'lexicographic' and not succeeded(rollout):
    weights = components.weights_in_force(
        reward.weights, constrained=reward.constrained, succeeded=False
    )
    rewards = _position_rewards(rollout, weights)
  raw = normalised = 0.0
  if verdict.score is not None:
    raw = components.terminal_reward(verdict.score, weights)
    normalised = components.terminal_reward(
        scale.score(verdict.score), weights
    )
  return Scored(normalised, raw, scale, weights, rewards)


def succeeded(rollout: records.Rollout) -> bool:
  """The goal was reached, and nothing was violated on the way (D2)."""
  violations = [
      kind for kind, *_ in rollout.safety_events if kind not in _HARMLESS_EVENTS
  ]
  return summary.is_solved(rollout) is True and not violations


def _position_rewards(
    rollout: records.Rollout, weights: Mapping[str, float]
) -> tuple[np.ndarray, ...]:
  lengths = {s.segment_index: len(s) for s in rollout.segments}
  # A dropped prefix took the places of its rewards with it (T10).
  places = {
      name: [place for place in values if place[0] in lengths]
      for name, values in rollout.reward_components.items()
  }
  rewards = components.position_rewards(places, weights, lengths)
  return tuple(rewards[s.segment_index] for s in rollout.segments)
