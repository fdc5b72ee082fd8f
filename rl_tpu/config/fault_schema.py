"""Settings of what a run bears: failing parts, bad numbers, a resume."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FaultsConfig:
  """When a run stops instead of going on with what is left (A5, O6, L18).

  Attributes:
    max_share: share of a batch's rollouts, or of an evaluation's, that may end
      as infra_failure (guess); above it the run stops. 1 is off.
    sampler_restarts: restarts of a failed sampler in one update, weights pushed
      again and the update's rollouts begun anew; one more fault stops the run.
    max_skipped: updates in a row with a step that is skipped because loss or
      gradient is not finite, after which the run stops (guess).
    device_wall_s: seconds for which the devices may keep a round of the
      sampler, a publication, the scoring of a batch or an update, compilation
      included; then the process ends and its launcher starts it again. None is
      off.
  """

  max_share: float = 0.25
  sampler_restarts: int = 1
  max_skipped: int = 5
  device_wall_s: float | None = None


@dataclasses.dataclass(frozen=True)
class ResumeConfig:
  """How far the critic may be from its saved figures after a resume (O8).

  Measured on the first batch; further away, updates train the critic alone.

  Attributes:
    max_bias: of critic/bias (untuned).
    max_ece: of critic/ece (untuned).
  """

  max_bias: float = 0.3
  max_ece: float = 0.3
