"""Several task sources as one, for a run that mixes them (D4)."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_tpu.config import loading
from rl_tpu.records import records
from rl_tpu.tasks import splits


class MixedTasks(Sequence):
  """The tasks of several sources, one source after the other.

  `data.mix` decides how often each is drawn; without it they come in the
  proportion of their lengths.
  """

  def __init__(
      self,
      split: str = 'train',
      *,
      parts: Mapping[str, Mapping[str, Any]],
  ):
    """Builds every part.

    Args:
      split: train or eval.
      parts: by the name of the source, `target` (import path) and `settings`
        of its class. Its tasks must carry that name as their source.

    Raises:
      ValueError: no parts, a part that cannot be built, without tasks, or
        whose tasks carry another source.
    """
    if not parts:
      raise ValueError('tasks.settings.parts: name at least one source.')
    self._parts = {}
    for name, part in parts.items():
      setting = f'tasks.settings.parts.{name}'
      self._parts[name] = _build(setting, part, split)
      found = _sources(self._parts[name])
      if found != [name]:
        raise ValueError(
            f'{setting}: its tasks carry the source'
            f' {", ".join(map(repr, found))}; a part has one, and is named so.'
        )
    self._starts = {}
    count = 0
    for name, tasks in self._parts.items():
      self._starts[name] = count
      count += len(tasks)
    self._count = count

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> records.Task:
    """The task of an index.

    Raises:
      IndexError: outside the list.
    """
    index = splits.place(index, self._count)
    for name, tasks in self._parts.items():
      place = index - self._starts[name]
      if place < len(tasks):
        return tasks[place]
    raise IndexError(index)

  def indices_by_source(self) -> dict[str, range]:
    """Places of the tasks of every source."""
    return {
        name: range(start, start + len(self._parts[name]))
        for name, start in self._starts.items()
    }

  def easier(self, task: records.Task) -> records.Task | None:
    """The variant that the task's own source declares (D7); None without."""
    easier = getattr(self._parts[task.source], 'easier', None)
    return None if easier is None else easier(task)


def _sources(tasks: Sequence[records.Task]) -> list[str]:
  declared = getattr(tasks, 'indices_by_source', None)
  return sorted(declared()) if callable(declared) else [tasks[0].source]


def _build(
    setting: str, part: Mapping[str, Any], split: str
) -> Sequence[records.Task]:
  unknown = sorted(set(part) - {'target', 'settings'})
  if unknown or 'target' not in part:
    raise ValueError(
        f'{setting}={dict(part)!r}: a part has target and settings.'
    )
  tasks = loading.construct(
      part['target'], part.get('settings', {}), setting=setting, split=split
  )
  if not len(tasks):
    raise ValueError(f'{setting}: it has no tasks.')
  return tasks
