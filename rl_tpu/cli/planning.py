"""The verb plan: tables of what a topology would hold and do."""

import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import rich.console
import rich.table

from rl_tpu.cli import arguments
from rl_tpu.config import overrides
from rl_tpu.config import schema

FLAGS = (
    arguments.Flag(
        'topology',
        'chip and extent in chips: v5e:8x8, v5p:4x4x4, v4:2x2x2, v6e:4x4,'
        ' tpu7x:2x2x1.',
        required=True,
    ),
    arguments.Flag('slices', 'slices that the axis data joins.', 1),
    arguments.Flag(
        'sweep',
        'comma list of mesh, remat, microbatch: plans their combinations, each'
        ' up to the first program that does not fit, and names the cheapest'
        ' that fits.',
        '',
    ),
    arguments.Flag('json', 'also write the plan to this file.', ''),
)
_GIB = 2**30


def run(
    config: schema.ExperimentConfig,
    values: Mapping[str, Any],
    console: rich.console.Console,
) -> int:
  """Plans, prints, and says by the exit code whether everything fits.

  Raises:
    ValueError: a topology, a sweep or a setting that cannot be, or a file that
      could not be written in the end.
  """
  path = pathlib.Path(values['json'])
  if values['json'] and (path.is_dir() or not path.parent.is_dir()):
    raise ValueError(
        f'--json={path}: name a file in a folder that is there.'
    )
  from rl_tpu.planning import plan
  from rl_tpu.planning import search
  from rl_tpu.planning import topology

  chip, devices = topology.describe(values['topology'], values['slices'])
  progress = rich.console.Console(stderr=True)

  known = {}

  def planner(config, only=lambda name: True, until_unfit=False) -> plan.Plan:
    begun = time.monotonic()

    def show(name: str) -> None:
      seconds = time.monotonic() - begun
      progress.print(f'{seconds:4.0f} s  compiling {name}')

    return plan.make(
        config,
        chip,
        devices,
        topology=values['topology'],
        slices=values['slices'],
        only=only,
        known=known,
        until_unfit=until_unfit,
        on_program=show,
    )

  if values['sweep']:
    wanted = search.combinations(
        config, values['sweep'].split(','), len(devices), values['slices']
    )
    trials = search.sweep(
        config, wanted, functools.partial(planner, until_unfit=True)
    )
    return _sweep(trials, len(wanted), values, console, progress)
  begun = time.monotonic()
  made = planner(config)
  advice = [] if made.fits else search.advise(config, made, planner)
  for table in (_memory(made), _parts(made), _work(made)):
    console.print(table)
  console.print(_conclusion(made, advice, time.monotonic() - begun))
  _write(
      values['json'],
      made.as_json() | {'advice': [dataclasses.asdict(a) for a in advice]},
  )
  return 0 if made.fits else 1


def _sweep(trials, count: int, values, console, progress) -> int:
  """Shows what became of each; the exit code is 0 where one fits."""
  table = rich.table.Table(title=f'sweep over {values["topology"]}')
  for name in ('settings', 'largest GiB', 'of', 'fits', 'least ms/step'):
    table.add_column(
        name, justify='left' if name in ('settings', 'of') else 'right'
    )
  fitting, out = [], []
  for number, trial in enumerate(trials, 1):
    text, made = ' '.join(trial.changes), trial.made
    if made is None:
      table.add_row(text, '', trial.reason, 'no', '')
      verdict = trial.reason
    else:
      largest = max(made.rows, key=lambda row: row.total_bytes)
      size = f'{largest.total_bytes / _GIB:.2f}'
      # A plan that was broken off says nothing of the whole step.
      bound = f'{made.bound_s * 1e3:,.2f}' if made.fits else ''
      verdict = 'yes' if made.fits else 'no'
      table.add_row(text, size, largest.name, verdict, bound)
      verdict = f'fits: {verdict}, {size} GiB in {largest.name}'
      if made.fits:
        fitting.append((made.bound_s, text))
    progress.print(f'{number} of {count}: {text}: {verdict}')
    out.append({
        'changes': trial.changes,
        'reason': trial.reason,
        'plan': None if made is None else made.as_json(),
    })
    _write(values['json'], {'sweep': out})
  console.print(table)
  if fitting:
    bound, text = min(fitting)
    console.print(
        f'cheapest that fits: {text} ({bound * 1e3:,.2f} ms a step at least)'
    )
  else:
    console.print('none of them fits.')
  return 0 if fitting else 1


def _write(path: str, content: Mapping[str, Any]) -> None:
  if path:
    pathlib.Path(path).write_text(json.dumps(content, indent=2), 'utf-8')


def _memory(made: Any) -> rich.table.Table:
  """What a device holds while each program runs."""
  limit = made.rows[0].limit_bytes
  table = rich.table.Table(
      title=f'{made.experiment} on {made.topology}: GiB a device, of'
      f' {limit / _GIB:.2f}'
  )
  table.add_column('program')
  for name in (
      'calls', 'arguments', 'temporary', 'output', 'peak', 'beside', 'total',
      'fits',
  ):
    table.add_column(name, justify='right')
  for row in made.rows:
    figures = row.figures
    table.add_row(
        row.name,
        str(row.calls),
        _gib(figures.argument_bytes),
        _gib(figures.temporary_bytes),
        _gib(figures.output_bytes),
        _gib(figures.peak_bytes),
        _gib(row.beside_bytes),
        ('over ' if figures.refused else '') + _gib(row.total_bytes),
        'yes' if row.fits else 'NO',
    )
  return table


def _parts(made: Any) -> rich.table.Table:
  """What stays on a device, and which of it each program reads."""
  table = rich.table.Table(title='what stays on a device, GiB')
  table.add_column('part')
  table.add_column('GiB', justify='right')
  table.add_column('an argument of')
  for name, size in made.resident.items():
    readers = [row.name for row in made.rows if name in row.holds]
    table.add_row(name, _gib(size), ', '.join(readers))
  return table


def _work(made: Any) -> rich.table.Table:
  """Arithmetic, bytes and the least time of every program."""
  table = rich.table.Table(
      title='work of a call; the least time is a bound, not an estimate'
  )
  table.add_column('program')
  for name in (
      'TFLOP', 'not the model', 'sent MB a device', 'least ms', 'bound by',
      'compiled s',
  ):
    table.add_column(name, justify='right')
  for row in made.rows:
    sent = ', '.join(
        f'{kind} {size / 1e6:,.0f}'
        for kind, size in row.figures.sent_bytes.items()
    )
    slowest = max(row.least_s, key=row.least_s.get)
    table.add_row(
        row.name,
        f'{row.figures.flops / 1e12:,.2f}',
        f'{row.extra_share:.0%}',
        sent or '-',
        f'{row.bound_s * 1e3:,.1f}',
        slowest,
        f'{row.figures.compile_s:.0f}',
    )
  return table


def _conclusion(made: Any, advice, seconds: float) -> str:
  mesh = ', '.join(f'{axis} {size}' for axis, size in made.mesh.items())
  lines = [
      f'mesh {mesh}; a batch of {made.batch[0]} rows of {made.batch[1]} tokens,'
      ' one row a rollout; a step without its decoding takes at least'
      f' {made.bound_s:.2f} s; planned in {seconds:.0f} s.'
  ]
  if made.fits:
    lines.append('everything fits.')
  for row in made.rows:
    if not row.fits:
      over = (row.total_bytes - row.limit_bytes) / _GIB
      lines.append(f'{row.name} does not fit: {over:.2f} GiB too much.')
  for one in advice:
    verdict = 'then it fits' if one.fits else 'not enough'
    lines.append(
        f'  {one.program}: --set {one.change.replace(" ", " --set ")} saves'
        f' {one.saved_bytes / _GIB:.2f} GiB; {verdict}.'
    )
  return '\n'.join(lines)


def _gib(size: int) -> str:
  return f'{size / _GIB:.3f}'
