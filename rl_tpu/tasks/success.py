"""How often each task was solved lately (E8, D7), as known before a batch."""

from collections.abc import Iterable, Mapping
from typing import Any


class TaskSuccess:
  """The latest outcomes of every task; kept with the checkpoint.

  A task's rate is read while a batch is drawn and compared; the batch's own
  outcomes are taken in afterwards, because the success of the same group is a
  biased guess of what the group could have shown.
  """

  def __init__(self, window: int = 16):
    """Args: window: outcomes that are kept of a task.

    Raises:
      ValueError: fewer than one.
    """
    if window < 1:
      raise ValueError(f'data.success_window={window}: it must be at least 1.')
    self._window = window
    self._outcomes: dict[str, str] = {}

  def rate(self, task_id: str, *, at_least: int = 1) -> float | None:
    """Share of the kept outcomes that were successes.

    Args:
      task_id: of the task.
      at_least: outcomes without which the rate is unknown.

    Returns:
      None where it is unknown.
    """
    outcomes = self._outcomes.get(task_id, '')
    if len(outcomes) < max(at_least, 1):
      return None
    return outcomes.count('1') / len(outcomes)

  def record(self, outcomes: Iterable[tuple[str, bool]]) -> None:
    """Takes (task id, solved) of scored rollouts in, in their order."""
    for task_id, solved in outcomes:
      kept = self._outcomes.get(task_id, '') + ('1' if solved else '0')
      self._outcomes[task_id] = kept[-self._window :]

  def state(self) -> dict[str, str]:
    """JSON form for the checkpoint: the outcomes of a task as 0s and 1s."""
    return dict(self._outcomes)

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on with what `state` gave."""
    self._outcomes = dict(state)
