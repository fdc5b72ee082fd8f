"""Which tasks a batch draws: mixed by source, weighted by success (D4, D7).

The order inside a source is the cursor's. A mix hands the places of a batch
out by credit, so every stretch of draws has its shares; a curriculum passes a
task over with the probability that its weight leaves. Both depend on saved
numbers and hashes only, so a resumed run draws what an uninterrupted one would.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.tasks import cursor as cursor_lib
from rl_tpu.tasks import success as success_lib

_ALL = ''


@dataclasses.dataclass(frozen=True)
class Draw:
  """A task for a batch.

  Attributes:
    task: what is run.
    weight: sampling weight that the drawn task had; 1 without a curriculum.
    standing: unknown, mixed, solved or unsolved: its success before the draw.
    replaced: the task is an easier variant of the one that was drawn.
  """

  task: records.Task
  weight: float = 1.0
  standing: str = 'unknown'
  replaced: bool = False


class TaskDraws:
  """Endless draws from a task source, with a saveable place."""

  def __init__(
      self,
      source: Sequence[records.Task],
      *,
      seed: int,
      shuffle: bool = True,
      data: schema.DataConfig = schema.DataConfig(),
      success: success_lib.TaskSuccess | None = None,
  ):
    """Starts at the first task.

    Args:
      source: tasks by index. It may offer `indices_by_source()`; without it a
        mix reads every task once. A curriculum needs its `easier(task)`.
      seed: of the order.
      shuffle: False keeps the source's order.
      data: mix and curriculum.
      success: of earlier batches, for the curriculum.

    Raises:
      ValueError: a mix that does not fit the source, or a curriculum whose
        source declares no easier variants.
    """
    self._source = source
    self._seed = seed
    self._data = data
    self._success = success or success_lib.TaskSuccess(data.success_window)
    self._weights = {_ALL: 1.0}
    parts: Mapping[str, Sequence[records.Task]] = {_ALL: source}
    if data.mix:
      parts = _by_source(source, data.mix)
      total = sum(data.mix[name] for name in parts)
      self._weights = {name: data.mix[name] / total for name in parts}
    self._cursors = {
        name: cursor_lib.TaskCursor(part, seed=seed, shuffle=shuffle)
        for name, part in parts.items()
    }
    self._credit = dict.fromkeys(self._cursors, 0.0)
    self._count = 0
    self.passed_over = 0
    if data.curriculum == 'success' and data.easier_rate > 0:
      if not callable(getattr(source, 'easier', None)):
        raise ValueError(
            f'data.easier_rate={data.easier_rate}: the task source declares no'
            ' easier variants (a method easier(task)); set data.easier_rate=0.'
        )

  @property
  def count(self) -> int:
    """Tasks handed out so far; ids and seeds of rollouts derive from it."""
    return self._count

  def take(self, count: int) -> list[Draw]:
    """The next tasks; moves past them."""
    draws = [self._draw(self._next_source()) for _ in range(count)]
    self._count += count
    return draws

  def _next_source(self) -> str:
    """The source that is owed most; ties go to the first name."""
    for name, weight in self._weights.items():
      self._credit[name] += weight
    name = max(sorted(self._credit), key=self._credit.__getitem__)
    self._credit[name] -= 1.0
    return name

  def _draw(self, name: str) -> Draw:
    cursor = self._cursors[name]
    while True:
      place = cursor.next_index
      (task,) = cursor.take(1)
      if self._data.curriculum == 'none':
        return Draw(task)
      standing, weight = self.weight(task.task_id)
      if self._chance('pass', name, place) >= weight:
        self.passed_over += 1
        continue
      rate = self._data.easier_rate if standing == 'unsolved' else 0.0
      if self._chance('easier', name, place) < rate:
        easier = self._source.easier(task)
        if easier is not None:
          return Draw(easier, weight, standing, True)
      return Draw(task, weight, standing)

  def weight(self, task_id: str) -> tuple[str, float]:
    """Standing of a task, and the probability of keeping it when it comes."""
    data = self._data
    rate = self._success.rate(task_id, at_least=data.min_outcomes)
    if rate is None:
      return 'unknown', 1.0
    if rate == 1.0:
      return 'solved', min(1.0, max(data.easy_weight, data.min_weight))
    return ('unsolved' if rate == 0.0 else 'mixed'), 1.0

  def _chance(self, purpose: str, name: str, place: int) -> float:
    """A number in [0, 1) that depends on seed and place alone."""
    text = '\x1f'.join([str(self._seed), purpose, name, str(place)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'big') / 2**64

  def state(self) -> dict[str, Any]:
    """JSON values that `restore` goes on from."""
    return {
        'cursors': {n: c.state() for n, c in self._cursors.items()},
        'credit': dict(self._credit),
        'count': self._count,
    }

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on where `state` was taken.

    Raises:
      ValueError: the state belongs to other sources or another order.
    """
    if set(state['cursors']) != set(self._cursors):
      raise ValueError(
          f'data.mix: the saved place has sources {sorted(state["cursors"])},'
          f' this run {sorted(self._cursors)}. Resume with the mix that the run'
          ' was started with.'
      )
    for name, cursor in self._cursors.items():
      cursor.restore(state['cursors'][name])
    self._credit = dict(state['credit'])
    self._count = int(state['count'])


class _Part(Sequence):
  """The tasks of one source."""

  def __init__(self, source: Sequence[records.Task], indices: Sequence[int]):
    self._source = source
    self._indices = list(indices)

  def __len__(self) -> int:
    return len(self._indices)

  def __getitem__(self, index: int) -> records.Task:
    return self._source[self._indices[index]]


def _by_source(
    source: Sequence[records.Task], mix: Mapping[str, float]
) -> dict[str, _Part]:
  """Tasks of every source with a weight above 0."""
  declared = getattr(source, 'indices_by_source', None)
  if callable(declared):
    indices = declared()
  else:
    indices = {}
    for index in range(len(source)):
      indices.setdefault(source[index].source, []).append(index)
  for name in mix:
    if name not in indices:
      raise ValueError(
          f'data.mix.{name}: the tasks have no such source; there are'
          f' {", ".join(sorted(indices))}.'
      )
  for name in indices:
    if name not in mix:
      raise ValueError(
          f'data.mix={dict(mix)!r}: source {name!r} has no weight; give it one'
          ' (0 leaves it out).'
      )
  return {
      name: _Part(source, indices[name])
      for name in sorted(indices)
      if mix[name] > 0
  }
