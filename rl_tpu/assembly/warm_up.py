"""The critic's warm-up: how long the actor stays frozen (C1)."""

from collections.abc import Callable
from typing import Any

from rl_tpu.config import schema
from rl_tpu.learner import fingerprint


class WarmUp:
  """Decides before each update whether the actor is trained.

  Attributes:
    over: the actor is trained from here on.
    actor: hash of the actor's parameters at the start of the warm-up; None
      where there was none.
  """

  def __init__(self, critic: schema.CriticConfig):
    """Starts before the first batch."""
    self._critic = critic
    self.over = False
    self.actor: str | None = None

  @property
  def max_steps(self) -> int:
    """Warm-up batches at most."""
    if self._critic.warmup_max_steps is not None:
      return self._critic.warmup_max_steps
    return 10 * self._critic.warmup_steps

  def freezes(
      self,
      batches: int,
      explained_variance: Callable[[], float | None],
      params: Any,
  ) -> bool:
    """True while the actor is not trained on the next batch.

    Args:
      batches: warm-up batches that the critic was trained on so far.
      explained_variance: of the next batch's held-out rollouts, none of which
        the critic has seen; asked for only where it decides.
      params: the actor's.

    Raises:
      RuntimeError: the explained variance was not reached in time, or the
        actor's parameters changed during the warm-up.
    """
    if self.over or not self._critic.warmup_steps:
      self.over = True
      return False
    if self.actor is None:
      self.actor = fingerprint.fingerprint(params)
    if batches < self._critic.warmup_steps:
      return True
    least = self._critic.warmup_min_ev
    if least is not None:
      found = explained_variance()
      if found is None or found < least:
        if batches >= self.max_steps:
          raise RuntimeError(_missed(found, least, batches, self.max_steps))
        return True
    self._end(params)
    return False

  def _end(self, params: Any) -> None:
    now = fingerprint.fingerprint(params)
    if now != self.actor:
      raise RuntimeError(
          "critic.warmup_steps: the actor's parameters changed during the"
          f' warm-up, from {self.actor} to {now} (C1).'
      )
    self.over = True

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint."""
    return {'over': self.over, 'actor': self.actor}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes on with what `state` gave."""
    self.over, self.actor = bool(state['over']), state['actor']


def _missed(
    found: float | None, least: float, batches: int, limit: int
) -> str:
  shown = 'undefined' if found is None else f'{found:.3f}'
  return (
      f'critic.warmup_min_ev={least:g}: held-out explained variance is {shown}'
      f' after {batches} warm-up batches (critic.warmup_max_steps={limit}); the'
      ' critic does not generalise. Raise critic.warmup_max_steps or'
      ' critic.warmup_updates, or lower critic.warmup_min_ev.'
  )
