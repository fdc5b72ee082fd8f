"""Settings of old data, alignment and alarms (sections 6 and 7)."""

import dataclasses

# Limits of the alignment check by dtype (O4): largest and mean |difference|.
# float32 holds on CPU with the same model code; both pairs are guesses until
# a run has been measured.
ALIGNMENT_LIMITS = {'float32': (1e-4, 1e-5), 'bfloat16': (0.5, 0.02)}


@dataclasses.dataclass(frozen=True)
class StalenessConfig:
  """How old a rollout may be (O2).

  Attributes:
    max_version_gap: weight pushes between a token and the update that trains
      on it (guess).
    max_kl: KL of the sampler to the policy over a rollout's tokens (k3); it
      costs a forward pass. None is off.
    max_queue_seconds: wait between a rollout's end and its update; None is
      off.
    over: discard (the rollout is stale), or mask: only the tokens over
      max_version_gap lose their weight in the policy loss. The other two
      limits are of the whole rollout and always discard it.
  """

  max_version_gap: int = 4
  max_kl: float | None = None
  max_queue_seconds: float | None = None
  over: str = 'discard'


@dataclasses.dataclass(frozen=True)
class AlignmentConfig:
  """The check of sampler against trainer before any update (O4).

  Attributes:
    enabled: run it at the start and after every resume.
    max_abs: limit of the largest |difference| of a log-probability; None is
      1e-4 for model.dtype = float32 and 0.5 for bfloat16 (guess).
    mean_abs: limit of the mean; None is 1e-5 and 0.02 (guess).
    every: updates between checks of what was published after one; 0 checks
      the start alone.
  """

  enabled: bool = True
  max_abs: float | None = None
  mean_abs: float | None = None
  every: int = 0

  def limits(self, dtype: str) -> tuple[float, float]:
    """Limits of the largest and of the mean |difference| for a dtype."""
    largest, mean = ALIGNMENT_LIMITS[dtype]
    return (
        largest if self.max_abs is None else self.max_abs,
        mean if self.mean_abs is None else self.mean_abs,
    )


@dataclasses.dataclass(frozen=True)
class AlarmConfig:
  """When a training run says that something looks wrong (C7, C13).

  Attributes:
    window: batches that a trend is taken over (guess).
    one_sided: share of the positive advantage in the last, or in the first,
      tenth of the rollouts above which it is one-sided (guess).
  """

  window: int = 20
  one_sided: float = 0.9
