"""Settings of groups of rollouts (section 5); read as `schema.GroupConfig`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class GroupConfig:
  """Rollouts of one task compared with each other.

  Attributes:
    size: rollouts per task; 1 is single-rollout.
    eps: added to the standard deviation (E3, E5).
    std_floor: at or below it (G15) the group teaches nothing.
    min_size: smaller groups are discarded as group_incomplete (E7).
    on_mismatch: what members under different conditions do to their group:
      split, drop or error (E7).
    outcome_only: the return is the terminal reward alone (E2).
    dynamic_sampling: groups without spread are replaced by fresh tasks (E9).
    max_rounds: rounds of fresh tasks in one batch at most (guess).
  """

  size: int = 1
  eps: float = 0.0
  std_floor: float = 1e-6
  min_size: int = 2
  on_mismatch: str = 'split'
  outcome_only: bool = False
  dynamic_sampling: bool = False
  max_rounds: int = 3


@dataclasses.dataclass(frozen=True)
class GigpoConfig:
  """Groups of equal states inside a group of rollouts (E6).

  Attributes:
    gamma: discount per turn of the step returns.
    omega: weight of the step advantage beside the episode's.
    norm: std divides by the standard deviation, none does not.
    anchor: state (the environment names it), or observation (what was shown
      before the turn: merges states that only look alike).
  """

  gamma: float = 0.95
  omega: float = 1.0
  norm: str = 'std'
  anchor: str = 'state'
