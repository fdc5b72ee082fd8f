"""Rewards of different sources brought to one scale (D1).

`reward.norm` is none, affine (constants written down per verifier) or running
(the deviation of the returns of earlier batches, per source). A shift reaches
scored ends only: on anything else it would pay or fine what was not scored.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rl_tpu.config import schema
from rl_tpu.types import statistics


@dataclasses.dataclass(frozen=True)
class Scale:
  """(r - shift) / divisor of a score, r / divisor of a step reward."""

  shift: float = 0.0
  divisor: float = 1.0

  def score(self, raw: float) -> float:
    """A verifier's score on this scale."""
    return (raw - self.shift) / self.divisor

  @property
  def scale_id(self) -> str:
    """Stands for the scale: rewards are compared under equal ones (E7)."""
    return f'{self.shift!r}/{self.divisor!r}'


@dataclasses.dataclass
class Scales:
  """The scales of a run; the running ones are kept with the checkpoint.

  Attributes:
    config: of the rewards.
    running: returns of earlier batches by source, unnormalised.
  """

  config: schema.RewardConfig
  running: statistics.Running = dataclasses.field(default_factory=dict)

  def of(self, source: str, verifier_id: str) -> Scale:
    """The scale of a rollout's rewards.

    A source that was not seen yet, or whose returns had no spread (G15), is
    left as it is.
    """
    config = self.config
    if config.norm == 'affine':
      return Scale(
          float(config.affine_shift.get(verifier_id, 0.0)),
          float(config.affine_scale.get(verifier_id, 1.0)),
      )
    if config.norm == 'running':
      seen = self.running.get(source, statistics.Statistics())
      # |mean| stands for the largest return ever seen.
      degenerate = statistics.is_degenerate(
          seen.std, np.asarray([seen.mean]), floor=config.std_floor
      )
      return Scale() if degenerate else Scale(divisor=seen.std)
    return Scale()

  def record(self, sources: Iterable[str], returns: Iterable[float]) -> None:
    """Takes a batch's unnormalised returns in, for the batches after it."""
    by_source: dict[str, list[float]] = {}
    for source, value in zip(sources, returns):
      by_source.setdefault(source, []).append(float(value))
    for source, values in by_source.items():
      earlier = self.running.get(source, statistics.Statistics())
      self.running[source] = statistics.merge(
          earlier, statistics.measure(np.asarray(values))
      )

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint (O7)."""
    return statistics.state(self.running)

  def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Goes on with the statistics that `state` gave."""
    self.running = statistics.from_state(state)


def check_verifier(config: schema.RewardConfig, verifier_id: str) -> None:
  """Refuses affine constants that no rollout of the run would use.

  Raises:
    ValueError: norm = affine without constants of the run's verifier.
  """
  if config.norm != 'affine':
    return
  named = sorted({*config.affine_scale, *config.affine_shift})
  if verifier_id not in named:
    raise ValueError(
        f'reward.affine_scale={dict(config.affine_scale)!r}: the verifier is'
        f' {verifier_id!r}, and reward.norm=affine needs its constants; name it'
        ' in reward.affine_scale or reward.affine_shift.'
    )
  for name in named:
    if name != verifier_id:
      raise ValueError(
          f'reward.affine_scale.{name}: the verifier of this run is'
          f' {verifier_id!r}; remove it.'
      )
