"""Kills of a training run at instants that nothing inside it knows of.

The run is started, killed with SIGKILL after a time that a seed has drawn, and
started again, until it has made all its updates; then another one begins, until
there were as many kills as asked for. A run that nobody killed is made first.
What is compared comes from the files on disk alone.
"""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import psutil
import rich.console

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Of the host part: what has to be bit for bit that of the run that nobody
# killed. Seconds are not among it.
COMPARED = (
    'policy_version', 'update', 'cursor', 'sampling', 'ledger',
    'unscored', 'reward_statistics', 'overflow', 'warm_up', 'faults',
    'sampler_restarts', 'gates', 'queue',
)


@dataclasses.dataclass(frozen=True)
class Kill:
  """One kill.

  Attributes:
    after_s: seconds from the start of the process.
    step: last whole checkpoint at that instant, -1 for none.
    where: what the files say of the instant.
    left: worker processes that were still there ten seconds later.
  """

  after_s: float
  step: int
  where: str
  left: int


def start(
    experiment: pathlib.Path,
    workdir: pathlib.Path,
    *,
    steps: int,
    devices: int,
    log: pathlib.Path,
    changes: Sequence[str] = (),
    command: Sequence[str] = ('rl_tpu',),
) -> subprocess.Popen:
  """Starts the run, or takes it up.

  Args:
    experiment: its file.
    workdir: of the run.
    steps: updates in all.
    devices: CPU devices.
    log: what it prints is added to this file.
    changes: further settings, path=value.
    command: module that runs the verb, and words before it.
  """
  environment = os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
  }
  with open(log, 'a', encoding='utf-8') as file:
    return subprocess.Popen(
        [
            sys.executable, '-m', *command, 'train',
            f'--experiment={experiment}', f'--workdir={workdir}',
            *(f'--set={change}' for change in (f'steps={steps}', *changes)),
        ],
        cwd=ROOT, env=environment, stdout=file, stderr=file,
    )


def has_failed(
    process: subprocess.Popen,
    log: pathlib.Path,
    console: rich.console.Console,
) -> bool:
  """Waits for a run's end; shows what it said last where it has failed."""
  if not process.wait():
    return False
  console.print(log.read_text()[-3000:])
  return True


def whole_steps(workdir: pathlib.Path) -> list[int]:
  """Checkpoints that are whole, ascending."""
  return sorted(
      int(path.parent.name)
      for path in (workdir / 'checkpoints').glob('*/_CHECKPOINT_METADATA')
      if path.parent.name.isdigit()
  )


def state(workdir: pathlib.Path, step: int) -> dict[str, object]:
  """What a checkpoint says of itself, as far as it is compared."""
  path = workdir / 'checkpoints' / str(step) / 'host' / 'metadata'
  host = json.loads(path.read_text())
  # Their digests, optimizers included; the host's has seconds in it.
  arrays = {'arrays': host['arrays']}
  return arrays | {name: host[name] for name in COMPARED}


def _where(workdir: pathlib.Path) -> str:
  if not (workdir / 'config.json').exists():
    return 'before the start'
  names = [p.name for p in (workdir / 'checkpoints').glob('*')]
  if any(not name.isdigit() for name in names):
    return 'inside a save'
  steps = whole_steps(workdir)
  written = [
      int(p.stem) for p in (workdir / 'rollouts').glob('*.jsonl')
      if p.stem.isdigit()
  ]
  if written and max(written) > (steps[-1] if steps else 0):
    return 'after an update, before its save'
  return 'gathering, scoring or updating'


def kill(process: subprocess.Popen, workdir: pathlib.Path, after_s: float) -> Kill:
  """Kills a process whose workers stay behind, and looks at what is left."""
  workers = psutil.Process(process.pid).children(recursive=True)
  where, steps = _where(workdir), whole_steps(workdir)
  process.send_signal(signal.SIGKILL)
  process.wait()
  _, left = psutil.wait_procs(workers, timeout=10)
  for worker in left:
    worker.kill()
  return Kill(after_s, steps[-1] if steps else -1, where, len(left))


def killed_run(
    begin: Callable[[], subprocess.Popen],
    workdir: pathlib.Path,
    *,
    draw: random.Random,
    start_s: float,
    update_s: float,
    most: int,
) -> Iterator[Kill]:
  """Starts and kills a run until it ends by itself, or `most` kills are made.

  Args:
    begin: starts it, or takes it up.
    workdir: of the run.
    draw: of the instants.
    start_s: seconds that a start takes before its first update.
    update_s: seconds of an update.
    most: kills; then it may end.

  Raises:
    RuntimeError: a start that failed, or one that fell behind.
  """
  reached = -1
  for number in range(most + 1):
    process = begin()
    begun = time.monotonic()
    # Mostly during updates; at times before the first one.
    after_s = draw.uniform(0.3 * start_s, start_s + 2.5 * update_s)
    timeout = None if number == most else after_s
    try:
      code = process.wait(timeout)
    except subprocess.TimeoutExpired:
      made = kill(process, workdir, time.monotonic() - begun)
      if made.step < reached:
        raise RuntimeError(
            f'{workdir}: checkpoint {reached} was there, and after a kill the'
            f' last one is {made.step}.'
        ) from None
      reached = made.step
      yield made
      continue
    if code:
      raise RuntimeError(f'{workdir}: a start ended with {code}.')
    return
