"""What the trainer needs of whatever produces rollouts."""

from collections.abc import Sequence
from typing import Any, Protocol


class RolloutSource(Protocol):
  """Turns tasks into ended rollouts under the published weights."""

  def collect(self, tasks: Sequence[Any]) -> list[Any]:
    """Runs every task once and returns one `records.Rollout` per task.

    The order of the result is the order of `tasks`, whatever finished first.
    """
