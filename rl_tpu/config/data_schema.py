"""Settings of rewards and of what is sampled (section 9)."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """Components, their weights and their scale (D1, D2).

  A component that the environment names and `weights` does not has weight 0
  and is logged all the same. `terminal` is the verifier's score (R9).

  Attributes:
    weights: weight of every component by name.
    mode: weighted (the sum), or lexicographic: the `constrained` terms count
      only in rollouts that succeed without violation.
    constrained: names of the format and cost terms of mode = lexicographic.
    norm: none, affine (constants per verifier) or running (deviation of the
      returns of earlier batches, per source).
    affine_scale: s of (r - m) / s by verifier id, with norm = affine.
    affine_shift: m of (r - m) / s by verifier id; scored ends only.
    std_floor: at or below it (G15) a running deviation does not divide.
  """

  weights: Mapping[str, float] = dataclasses.field(
      default_factory=lambda: {'terminal': 1.0}
  )
  mode: str = 'weighted'
  constrained: tuple[str, ...] = ()
  norm: str = 'none'
  affine_scale: Mapping[str, float] = dataclasses.field(default_factory=dict)
  affine_shift: Mapping[str, float] = dataclasses.field(default_factory=dict)
  std_floor: float = 1e-6


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Admission switches (T10), and which tasks are drawn (D4, D7).

  Attributes:
    allow_dropped_prefix: missing first segments are no broken chain.
    mix: weight of every task source in a batch; empty takes the tasks as
      they come.
    curriculum: none, or success: a task's running success decides how often
      it is drawn.
    easy_weight: sampling weight of a task that is always solved (guess).
    easier_rate: how often a task that is never solved is replaced by the
      easier variant that its source declares (guess).
    min_weight: the least sampling weight, so that every task stays measured
      (guess).
    min_outcomes: outcomes before a task counts as always or never solved
      (guess).
    success_window: latest outcomes of a task that its running success is
      taken over (guess).
  """

  allow_dropped_prefix: bool = False
  mix: Mapping[str, float] = dataclasses.field(default_factory=dict)
  curriculum: str = 'none'
  easy_weight: float = 0.2
  easier_rate: float = 0.5
  min_weight: float = 0.05
  min_outcomes: int = 4
  success_window: int = 16
