"""What does a save cost an update, and a resume a run?

Everything is read from outside: from the metrics and the processor time of two
runs that differ in `checkpoint.every` alone, and from the times at which a
resumed run says its lines. Seconds of the clock are those of the neighbours,
too, unless the run is alone on the machine; processor time is its own.
"""

from collections.abc import Iterator, Mapping, Sequence
import json
import pathlib
import resource
import statistics
import subprocess
import time

import rich.console
import rich.table

from tests.chaos import kills

# What an evaluation takes is neither's.
_SETTINGS = (
    'evaluation.every=0', 'evaluation.tasks=8', 'evaluation.final_tasks=8',
    'evaluation.temperatures=1', 'time_limit_s=None',
)
# Compiled, and out of the critic's warm-up.
_FIRST = 4
# What a resume says, in its order.
_SAID = (
    'resumed after', 'RESTORED', 'SYNCED', 'ALIGNED', 'CALIBRATED', 'OPEN',
    'update ',
)


def _figures(workdir: pathlib.Path) -> list[Mapping[str, float]]:
  """The lines of updates, without the first ones."""
  text = (workdir / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  lines = [line for line in lines if 'rollout/started' in line]
  return [line for line in lines if line['step'] >= _FIRST]


def _update_s(lines: Sequence[Mapping[str, float]]) -> float:
  """Median seconds from an update's line to the next one's."""
  times = [line['time'] for line in lines]
  return statistics.median(b - a for a, b in zip(times, times[1:]))


def _processor_s() -> float:
  """Of all processes that this one has started and that have ended."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _said(
    process: subprocess.Popen, log: pathlib.Path, begun: float
) -> Iterator[tuple[str, float]]:
  """What a resume says, with the seconds since its start."""
  wanted = iter(_SAID)
  name = next(wanted)
  while not log.exists():
    time.sleep(0.01)
  with open(log, encoding='utf-8') as file:
    while process.poll() is None:
      line = file.readline()
      if not line:
        time.sleep(0.01)
      elif line.startswith(name):
        said = line.split(':')[0].split('  ')[0].strip()
        yield said, time.monotonic() - begun
        name = next(wanted, '\0')


def check(
    experiment: pathlib.Path,
    folder: pathlib.Path,
    *,
    steps: int,
    devices: int,
    console: rich.console.Console,
) -> int:
  """Makes three runs and prints what they took.

  Args:
    experiment: what is run.
    folder: receives the work directories.
    steps: updates of a run.
    devices: CPU devices.
    console: to print on.
  """
  lines, used = {}, {}
  for every in (0, 0, 1):
    before = _processor_s()
    # The first one fills the compilation cache; its figures are not kept.
    workdir = folder / f'every{every}-{len(list(folder.glob("every*")))}'
    process = kills.start(
        experiment, workdir, steps=steps, devices=devices,
        log=folder / 'run.log',
        changes=(*_SETTINGS, f'checkpoint.every={every}'),
    )
    if kills.has_failed(process, folder / 'run.log', console):
      return 1
    lines[every], used[every] = _figures(workdir), _processor_s() - before
  without, with_ = _update_s(lines[0]), _update_s(lines[1])
  blocked = statistics.median(
      line['perf/seconds/checkpoint'] for line in lines[1]
  )
  console.print(
      f'an update takes {without:.3f} s without a save and {with_:.3f} s with'
      f' one each ({with_ / without - 1:+.1%}); {blocked:.3f} s of them'
      f' ({blocked / with_:.1%}) is the loop waiting for it, the rest is'
      ' written beside the next update'
  )
  # Both save at their end.
  more = (used[1] - used[0]) / (steps - 1)
  console.print(
      f'processor time: {used[0]:.1f} s of {steps} updates, start included, and'
      f' {used[1]:.1f} s with a save each: {more:.3f} s a save'
  )
  log, begun = folder / 'resumed.log', time.monotonic()
  process = kills.start(
      experiment, workdir, steps=steps + 1, devices=devices, log=log,
      changes=(*_SETTINGS, 'checkpoint.every=1'),
  )
  table = rich.table.Table('a resume says', 'after s', 'so much more')
  before = 0
  for name, seconds in _said(process, log, begun):
    table.add_row(name, f'{seconds:.2f}', f'{seconds - before:.2f}')
    before = seconds
  process.wait()
  console.print(table)
  return process.returncode
