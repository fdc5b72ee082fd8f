"""The table a command ends with."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import rich.table

Interval = tuple[float, float, float]

_STOPPED = {
    'steps': 'all steps are done',
    'time_limit': 'the time limit is reached',
    'token_limit': 'the token limit is reached',
    'signal': 'a signal asked for it',
}


def training(summary: Mapping[str, Any]) -> rich.table.Table:
  """What a training run came to.

  Args:
    summary: what `trainer.train` returns: before and after (temperature to
      point, low, high), phase_s, tokens_per_s, workdir, checkpoint, updates,
      train_s and stopped.
  """
  table = _table('training')
  temperatures = dict.fromkeys([*summary['before'], *summary['after']])
  for temperature in temperatures:
    before = summary['before'].get(temperature)
    after = summary['after'].get(temperature)
    table.add_row(
        f'success, {temperature_name(temperature)}',
        f'{interval(before)}  ->  {interval(after)}',
    )
  _add_noise(table, summary.get('verifier_disagreement'))
  table.add_section()
  table.add_row(
      'updates',
      f'{summary["updates"]} in {summary["train_s"]:.0f} s;'
      f' {_STOPPED.get(summary["stopped"], summary["stopped"])}',
  )
  table.add_row('sampled tokens per second', f'{summary["tokens_per_s"]:,.0f}')
  total = sum(summary['phase_s'].values()) or 1.0
  for phase, seconds in sorted(
      summary['phase_s'].items(), key=lambda item: -item[1]
  ):
    share = seconds / total
    table.add_row(f'seconds: {phase}', f'{seconds:8.1f}  ({share:.0%})')
  table.add_section()
  workdir = summary['workdir']
  table.add_row(
      'dashboards', f'tensorboard --logdir={os.path.join(workdir, "tb")}'
  )
  table.add_row('figures', os.path.join(workdir, 'metrics.jsonl'))
  table.add_row('transcripts', f'python -m rl_tpu inspect --workdir={workdir}')
  table.add_row('checkpoint', str(summary['checkpoint']))
  return table


def evaluation(
    summary: Mapping[Any, Interval], *, noise: float | None = None
) -> rich.table.Table:
  """Success with its interval by temperature, and its noise floor (D8)."""
  table = _table('evaluation')
  for temperature, found in summary.items():
    table.add_row(f'success, {temperature_name(temperature)}', interval(found))
  _add_noise(table, noise)
  return table


def _add_noise(table: rich.table.Table, noise: float | None) -> None:
  if noise is not None:
    table.add_row('verifier disagrees with itself', f'{noise:.1%}')


def supervised(summary: Mapping[str, Any]) -> rich.table.Table:
  """What a warm start came to: out, steps, loss and seconds."""
  table = _table('warm start')
  table.add_row('steps', f'{summary["steps"]} in {summary["seconds"]:.0f} s')
  table.add_row('last loss', f'{summary["loss"]:.4f}')
  table.add_row('model folder', str(summary['out']))
  return table


def folder(out: pathlib.Path, made_of: str) -> rich.table.Table:
  """A model folder that was written: its files with their sizes."""
  table = _table('model folder')
  table.add_row('made of', made_of)
  table.add_row('folder', str(out))
  table.add_section()
  for file in sorted(path for path in out.rglob('*') if path.is_file()):
    name = file.relative_to(out).as_posix()
    table.add_row(name, f'{file.stat().st_size:,} bytes')
  return table


def interval(found: Interval | None) -> str:
  """Point and 95 % interval."""
  if found is None:
    return 'not measured'
  point, low, high = found
  return f'{point:.3f} [{low:.3f}, {high:.3f}]'


def temperature_name(temperature: Any) -> str:
  """How a temperature is shown: `greedy` for 0, `T = 1` for a number."""
  if isinstance(temperature, (int, float)):
    return f'T = {temperature:g}' if temperature else 'greedy'
  return str(temperature)


def _table(title: str) -> rich.table.Table:
  table = rich.table.Table(title=title, show_header=False, title_justify='left')
  table.add_column(no_wrap=True)
  table.add_column(overflow='fold')
  return table
