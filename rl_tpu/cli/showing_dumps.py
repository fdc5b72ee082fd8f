"""A dump of a skipped step, in the terminal (L18)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import rich.console
import rich.table
import rich.text

from rl_tpu.records import dumps

# Tokens shown on each side of a number that is not finite.
_AROUND = 3
_LAYOUT = ('token', 'is_action')
_PLACE = ('task_id', 'rollout_id', 'segment', 'position', 'value')


def show(path: str, console: rich.console.Console) -> None:
  """Prints what was not finite, where, and the numbers around it.

  Args:
    path: the dump; either of its two files.
    console: to print on.

  Raises:
    ValueError: it is no dump.
  """
  report, arrays = dumps.read(path)
  try:
    tables = [_tensors(report), *_surroundings(report, arrays)]
    heading = (
        f'update {report["update"]}: the step of the {report["network"]} on'
        f' minibatch {report["minibatch"]} was skipped. In the step itself not'
        f' finite: {", ".join(report["in_step"]) or "nothing"}.'
    )
    rollouts = _rollouts(report)
  except (KeyError, IndexError, TypeError) as error:
    raise ValueError(f'{path}: it is no dump of a skipped step.') from error
  console.print(rich.text.Text(heading), soft_wrap=True)
  for table in tables:
    console.print(table)
  console.print(rollouts)


def _table(title: str, *columns: str) -> rich.table.Table:
  made = rich.table.Table(
      title=rich.text.Text(title), title_justify='left'
  )
  for name in columns:
    made.add_column(name, overflow='fold')
  return made


def _tensors(report: Mapping[str, Any]) -> rich.table.Table:
  table = _table(
      'not finite, in the order in which one comes from the other',
      'tensor', 'entries', 'task', 'rollout', 'segment', 'first at', 'value',
  )
  for tensor in report['tensors']:
    name, count = tensor['name'], str(tensor['count'])
    for place in tensor['places']:
      table.add_row(
          name, count, *(rich.text.Text(str(place[key])) for key in _PLACE)
      )
      name = count = ''
  if not report['tensors']:
    table.add_row('all that went in is finite')
  return table


def _surroundings(
    report: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> list[rich.table.Table]:
  """The numbers around the first place of the first tensor."""
  if not report['tensors']:
    return []
  first = report['tensors'][0]
  bad = ~np.isfinite(arrays[first['name']]) & arrays['is_action']
  row, column = np.argwhere(bad)[0]
  here = arrays['segment'][row] == arrays['segment'][row, column]
  near = np.arange(column - _AROUND, column + _AROUND + 1)
  near = near[(near >= 0) & (near < len(here))]
  near = near[here[near]]
  positions = [str(arrays['position'][row, place]) for place in near]
  table = _table(f'around the first {first["name"]}', 'position', *positions)
  for name in _LAYOUT:
    table.add_row(name, *(str(arrays[name][row, place]) for place in near))
  for name, array in arrays.items():
    if array.dtype.kind == 'f':
      table.add_row(name, *(f'{array[row, place]:.4g}' for place in near))
  return [table]


def _rollouts(report: Mapping[str, Any]) -> rich.table.Table:
  table = _table('rollouts of the minibatch', 'task', 'rollout', 'segments')
  for rollout in report['rollouts']:
    table.add_row(
        rich.text.Text(rollout['task_id']),
        rich.text.Text(rollout['rollout_id']),
        ' '.join(str(index) for index in rollout['segments']),
    )
  return table
