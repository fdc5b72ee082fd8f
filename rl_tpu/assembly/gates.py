"""What lies between a start or a resume and the actor's next update (O8)."""

import enum
from collections.abc import Callable, Mapping
from typing import Any

from rl_tpu.assembly import critic_figures
from rl_tpu.config import schema
from rl_tpu.learner import update as update_lib
from rl_tpu.rollout import batching


class Gate(enum.IntEnum):
  """The gates in their order; a start passes those of a resume, too."""

  CLOSED = 0
  RESTORED = 1
  SYNCED = 2
  ALIGNED = 3
  CALIBRATED = 4
  OPEN = 5


class Gates:
  """Which gate a run has passed, and what its critic has to come back to.

  Attributes:
    gate: the last one that was passed.
    critic_only: updates of this run, resumes included, that trained the
      critic alone because it was not as it was when it was saved.
  """

  def __init__(
      self,
      config: schema.ResumeConfig,
      *,
      has_critic: bool,
      note: Callable[[str], None],
  ):
    """Starts closed.

    Args:
      config: how far the critic may be from what it was.
      has_critic: False has nothing to calibrate.
      note: shows a line.
    """
    self._config = config
    self._has_critic = has_critic
    self._note = note
    self._saved: Mapping[str, float | None] | None = None
    self.gate = Gate.CLOSED
    self.critic_only = 0

  def pass_(self, gate: Gate, what: str) -> None:
    """Opens the next gate.

    Args:
      gate: the one behind the last.
      what: why it is open; shown where the run is a resumed one.

    Raises:
      RuntimeError: another one comes first.
    """
    if gate != self.gate + 1:
      raise RuntimeError(f'{gate.name} is asked for after {self.gate.name}.')
    self.gate = gate
    if self._saved is not None:
      self._note(f'{gate.name}: {what}')

  def close_behind(self, gate: Gate) -> None:
    """Closes what was opened behind a gate: it does not hold any more."""
    self.gate = min(self.gate, gate)

  def holds_actor(
      self, batch: batching.Batch, scored: update_lib.Scored
  ) -> bool:
    """True where this batch may train the critic alone.

    The first batch after a resume is measured and then trained on, so that
    nothing of cursor, random keys or ledger is spent on it.

    Args:
      batch: about to be trained on.
      scored: its values, before any update on it.

    Raises:
      RuntimeError: a gate before this one is closed.
    """
    if self.gate < Gate.ALIGNED:
      raise RuntimeError(f'an update is asked for after {self.gate.name} (O8).')
    if self.gate == Gate.OPEN:
      return False
    problem = self._problem(self._calibration(batch, scored))
    if problem:
      self.critic_only += 1
      self._note(f'{problem} This update trains the critic alone (O8).')
      return True
    self.pass_(Gate.CALIBRATED, 'the critic is as it was saved')
    self.pass_(Gate.OPEN, 'the actor is trained')
    return False

  def require_open(self) -> None:
    """Called before an update of the actor.

    Raises:
      RuntimeError: not all gates are passed.
    """
    if self.gate != Gate.OPEN:
      raise RuntimeError(
          f'an update of the actor is asked for after {self.gate.name} (O8).'
      )

  def _calibration(self, batch, scored) -> Mapping[str, float | None] | None:
    if not self._has_critic:
      return None
    table, _ = critic_figures.critic_table(batch, scored)
    return critic_figures.calibration(table)

  def _problem(self, found: Mapping[str, float | None] | None) -> str:
    """What is out of bounds; empty where nothing is, or nothing is known."""
    for name, saved in (self._saved or {}).items():
      limit = getattr(self._config, f'max_{name}')
      if saved is None or not found or found[name] is None:
        continue
      if abs(found[name] - saved) > limit:
        return (
            f'critic/{name} is {found[name]:.3f} on the first rollouts and was'
            f' {saved:.3f} when it was saved: more than resume.max_{name} ='
            f' {limit:g} away.'
        )
    return ''

  def figures(self) -> dict[str, float]:
    """The gate, and the updates that trained the critic alone."""
    return {
        'run/gate': float(self.gate),
        'run/critic_only_updates': float(self.critic_only),
    }

  def state(self, latest: Mapping[str, float | None] | None) -> dict[str, Any]:
    """JSON values for a checkpoint; `latest` is of the last batch.

    A run that has not come through yet keeps what it has to come back to.
    """
    found = latest if self.gate == Gate.OPEN else self._saved
    return {'calibration': found, 'critic_only': self.critic_only}

  def restore(self, state: Mapping[str, Any]) -> None:
    """Takes up what `state` gave, before any gate is passed."""
    self._saved = state['calibration'] or {}
    self.critic_only = state['critic_only']
