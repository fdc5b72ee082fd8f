"""Does a run of many updates stay as large as it was?

An outer process reads what the run holds, every so many updates, and nothing
inside it knows of that. After the first hundred updates, in which caches fill
and every program is compiled, a line is put through each figure: what it gains
until the end has to stay below a limit.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import json
import pathlib
import subprocess
import time

import numpy as np
import psutil
import rich.console
import rich.table

from tests.chaos import kills

EVERY, SETTLED = 25, 100
# Everything that comes at times comes at times.
_SETTINGS = (
    'checkpoint.every=10', 'checkpoint.keep=2', 'evaluation.every=50',
    'log.histograms_every=10', 'log.transcripts_every=10',
)
_MIB = 2**20
# Gain from update SETTLED to the end, by the line through the readings. Memory:
# what the allocator does not give back at once moves by a few MiB.
LIMITS = {
    'resident_mib': 16.0,
    'handles': 1.0,
    'threads': 1.0,
    'processes': 0.5,
    'compiled': 0.5,
}


@dataclasses.dataclass(frozen=True)
class Reading:
  """What a run holds after an update.

  Attributes:
    update: the last one that its metrics tell of.
    resident_mib: memory of the process itself.
    handles: open files and sockets.
    threads: of the process, those of XLA included.
    processes: workers.
    compiled: programs compiled since the start.
  """

  update: int
  resident_mib: float
  handles: int
  threads: int
  processes: int
  compiled: float


def readings(
    process: subprocess.Popen, workdir: pathlib.Path
) -> Iterator[Reading]:
  """Reads a run every `EVERY` updates until it ends."""
  metrics, seen, rest, compiled = workdir / 'metrics.jsonl', 0, '', 0.0
  while not metrics.exists() and process.poll() is None:
    time.sleep(0.2)
  handle = psutil.Process(process.pid)
  with open(metrics, encoding='utf-8') as file:
    while process.poll() is None:
      *lines, rest = (rest + file.read()).split('\n')
      for line in map(json.loads, lines):
        compiled += line.get('perf/compilations', 0.0)
        is_due = line['step'] % EVERY == 0 and line['step'] > seen
        if 'perf/compilations' in line and is_due:
          seen = line['step']
          try:
            yield _read(handle, seen, compiled)
          except psutil.NoSuchProcess:
            return
      time.sleep(0.05)


def _read(process: psutil.Process, update: int, compiled: float) -> Reading:
  return Reading(
      update=update,
      resident_mib=process.memory_info().rss / _MIB,
      handles=process.num_fds(),
      threads=process.num_threads(),
      processes=len(process.children(recursive=True)),
      compiled=compiled,
  )


def gains(found: Sequence[Reading]) -> dict[str, float]:
  """What each figure gains from `SETTLED` to the end, by a straight line."""
  late = [reading for reading in found if reading.update >= SETTLED]
  update = np.asarray([reading.update for reading in late], float)
  return {
      name: float(
          np.polyfit(update, [getattr(r, name) for r in late], 1)[0]
          * (update[-1] - update[0])
      )
      for name in LIMITS
  }


def check(
    experiment: pathlib.Path,
    folder: pathlib.Path,
    *,
    steps: int,
    console: rich.console.Console,
) -> int:
  """Makes the run and prints its table.

  Args:
    experiment: what is run.
    folder: receives its work directory.
    steps: updates, well above `SETTLED`.
    console: to print on.

  Returns:
    1 where a figure gains more than its limit, or something is left.
  """
  workdir, left = folder / 'long', folder / 'left.json'
  process = kills.start(
      experiment, workdir, steps=steps, devices=1, log=folder / 'long.log',
      command=('tests.chaos.leaving', str(left)), changes=_SETTINGS,
  )
  found = list(readings(process, workdir))
  if kills.has_failed(process, folder / 'long.log', console):
    return 1
  names = [field.name for field in dataclasses.fields(Reading)]
  table = rich.table.Table(*names)
  for reading in found:
    table.add_row(*(f'{getattr(reading, name):,.5g}' for name in names))
  gained = gains(found)
  table.add_row('gain', *(f'{gained[name]:+.2f}' for name in names[1:]))
  table.add_row('limit', *(f'{LIMITS[name]:g}' for name in names[1:]))
  console.print(table)
  behind = json.loads(left.read_text())
  console.print(f'after the close: {behind}')
  return int(
      any(gained[name] > LIMITS[name] for name in LIMITS)
      or any(behind.values())
  )
