"""The place in a task source that training has reached.

The place is a count of tasks that updates consumed, not a reader's position:
nothing is prefetched past it, so a saved state says exactly which task comes
next (K25, K26).
"""

from collections.abc import Sequence
from typing import Any

import grain

from rl_tpu.records import records
from rl_tpu.text import hashing

_SAMPLED_IDS = 16


class TaskCursor:
  """Endless tasks of a source, epoch after epoch, with a saveable place."""

  def __init__(
      self,
      source: Sequence[records.Task],
      seed: int,
      shuffle: bool = True,
  ):
    """Starts at the first task.

    Args:
      source: tasks by index.
      seed: of the order; every epoch gets its own.
      shuffle: False keeps the source's order in every epoch.

    Raises:
      ValueError: a source without tasks.
    """
    if not len(source):
      raise ValueError('the task source has no tasks.')
    data = grain.MapDataset.source(source).seed(seed)
    if shuffle:
      data = data.shuffle()
    self._data = data.repeat(None)
    self._identity = {
        'seed': seed,
        'shuffle': shuffle,
        'length': len(source),
        'content': _content_hash(source),
    }
    self._next_index = 0

  @property
  def next_index(self) -> int:
    """Tasks taken so far; seeds of rollouts may derive from it."""
    return self._next_index

  @property
  def epoch(self) -> int:
    """Whole passes over the source that are done."""
    return self._next_index // self._identity['length']

  def peek(self, count: int) -> list[records.Task]:
    """The next tasks; the place stays."""
    start = self._next_index
    return [self._data[i] for i in range(start, start + count)]

  def take(self, count: int) -> list[records.Task]:
    """The next tasks, across the ends of epochs; moves past them."""
    tasks = self.peek(count)
    self._next_index += count
    return tasks

  def state(self) -> dict[str, Any]:
    """JSON values that `restore` goes on from."""
    return {'next_index': self._next_index, **self._identity}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes on where `state` was taken.

    Raises:
      ValueError: the state belongs to another source or another order.
    """
    changed = [
        f'{name} {state.get(name)!r} became {value!r}'
        for name, value in self._identity.items()
        if state.get(name) != value
    ]
    if changed:
      raise ValueError(
          'the saved place belongs to other tasks or another order:'
          f' {"; ".join(changed)}. Resume with the tasks that the run was'
          ' started with.'
      )
    self._next_index = int(state['next_index'])


def _content_hash(source: Sequence[records.Task]) -> str:
  """Stands for a source: its length and the ids of tasks spread over it."""
  step = max(1, len(source) // _SAMPLED_IDS)
  places = sorted({*range(0, len(source), step), len(source) - 1})
  return hashing.of_json([len(source), [source[i].task_id for i in places]])
