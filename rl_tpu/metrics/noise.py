"""How far a verifier agrees with itself on the same input (D8)."""

from collections.abc import Iterable, Mapping
from typing import Any

from rl_tpu.records import records

# Counters that a session writes for a rollout that was scored twice.
_COUNTERS = {
    'rescored': 'verifier_rescored',
    'disagreed': 'verifier_disagreed',
    'squared_gap': 'verifier_squared_gap',
    'faults': 'verifier_rescore_faults',
}


class VerifierNoise:
  """Second scores by verifier version; kept with the checkpoint."""

  def __init__(self) -> None:
    self._sums: dict[str, dict[str, float]] = {}

  def record(self, rollouts: Iterable[records.Rollout]) -> list[str]:
    """Takes ended rollouts in.

    Returns:
      Ids of those whose second score differed.
    """
    differing = []
    for rollout in rollouts:
      found = {
          name: rollout.counters.get(counter, 0.0)
          for name, counter in _COUNTERS.items()
      }
      if not (found['rescored'] or found['faults']):
        continue
      sums = self._sums.setdefault(
          rollout.verifier_version, dict.fromkeys(_COUNTERS, 0.0)
      )
      for name, value in found.items():
        sums[name] += value
      if found['disagreed']:
        differing.append(rollout.rollout_id)
    return differing

  def disagreement(self) -> float | None:
    """Share of second scores that differed: the noise floor of a success.

    Returns:
      None before any second score.
    """
    rescored = sum(s['rescored'] for s in self._sums.values())
    if not rescored:
      return None
    return sum(s['disagreed'] for s in self._sums.values()) / rescored

  def figures(self) -> dict[str, float | None]:
    """Counts over the run, and disagreement and variance by version."""
    out: dict[str, float | None] = {
        f'reward/verifier_{name}': sum(s[name] for s in self._sums.values())
        for name in ('rescored', 'disagreed')
    }
    for version, sums in sorted(self._sums.items()):
      if sums['rescored']:
        count = sums['rescored']
        share = sums['disagreed'] / count
        out[f'reward/verifier_disagreement/{version}'] = share
        # Two scores of one input differ by twice the variance on average.
        variance = 0.5 * sums['squared_gap'] / count
        out[f'reward/verifier_variance/{version}'] = variance
    return out

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint."""
    return {version: dict(sums) for version, sums in self._sums.items()}

  def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
    """Goes on with what `state` gave."""
    self._sums = {version: dict(sums) for version, sums in state.items()}


def check_deterministic(
    differing: Iterable[str], *, verifier_id: str, deterministic: bool
) -> None:
  """Stops the run where a verifier that must agree with itself does not.

  Raises:
    RuntimeError: a deterministic verifier gave two scores.
  """
  ids = list(differing)
  if deterministic and ids:
    raise RuntimeError(
        f'verifier {verifier_id!r} says that it is deterministic, but scored'
        f' the same input of {", ".join(ids)} differently; mend it, or take'
        ' `deterministic` away and report its noise.'
    )
