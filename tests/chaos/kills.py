"""Kills of a training run at instants that nothing inside it knows of.

The run is started, killed with SIGKILL after a time that a seed has drawn, and
started again, until it has made all its updates; then another one begins, until
there were as many kills as asked for. A run that nobody killed is made first.
What is compared comes from the files on disk alone. Stages that are over in no
time are aimed at: from the drawn instant on the run is stopped, looked at and
let go on until it stands there.
"""

import contextlib
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

from tests.chaos import stages

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Of the host part: what has to be bit for bit that of the run that nobody
# killed. Seconds are not among it.
COMPARED = (
    'policy_version', 'update', 'cursor', 'sampling', 'ledger',
    'unscored', 'reward_statistics', 'overflow', 'warm_up', 'faults',
    'sampler_restarts', 'gates', 'queue',
)
# None is anywhere.
_AIMS = (
    None, None, 'critic update', 'actor update', 'publication of weights',
    'a save', 'an evaluation',
)
_AIMED_S = 8
# In which the others have to notice that one of them is gone.
_ENDS_S = 60


@dataclasses.dataclass(frozen=True)
class Kill:
  """One kill.

  Attributes:
    after_s: seconds from the start of the process.
    step: last whole checkpoint at that instant, -1 for none.
    where: stage of the loop, and whether a save was being written.
    ended_s: seconds until the other processes of the run had ended, too.
    left: worker processes that were still there ten seconds later.
  """

  after_s: float
  step: int
  where: str
  ended_s: float
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


def _is_saving(workdir: pathlib.Path, since: float) -> bool:
  """True where a checkpoint begun after `since` (Unix time) is not yet whole."""
  for path in (workdir / 'checkpoints').glob('*'):
    with contextlib.suppress(FileNotFoundError):  # Another process ended it.
      if not path.name.isdigit() and path.stat().st_mtime > since:
        return True
  return False


def kill(
    process: subprocess.Popen,
    workdir: pathlib.Path,
    after_s: float,
    draw: random.Random,
) -> Kill | None:
  """Kills a process of the run alone, and looks at what is left of the others.

  Args:
    process: the run, or what has started its processes.
    workdir: of the run.
    after_s: seconds since its start.
    draw: which of several processes, or of those that guard them, and where.

  Returns:
    The kill; None where the run has ended before it.

  Raises:
    subprocess.TimeoutExpired: the run still goes on a minute later.
  """
  begun = time.monotonic()
  below = psutil.Process(process.pid).children(recursive=True)
  several = [p.pid for p in below if 'rl_tpu' in _command(p)]
  killed = draw.choice(several or [process.pid])
  inner = psutil.Process(killed).children()
  inner = [p.pid for p in inner if p.pid in several] or [killed]
  stage = _stop(process, inner[0], draw)
  if stage is None:
    return None
  after_s += time.monotonic() - begun
  where = stage
  if _is_saving(workdir, psutil.Process(process.pid).create_time()):
    where += ', a save being written'
  if killed != inner[0]:
    where += ', by its guard'
  steps = whole_steps(workdir)
  below = psutil.Process(process.pid).children(recursive=True)
  os.kill(killed, signal.SIGKILL)
  begun = time.monotonic()
  process.wait(_ENDS_S)
  ended_s = time.monotonic() - begun
  _, left = psutil.wait_procs(below, timeout=10)
  for worker in left:
    worker.kill()
  return Kill(after_s, steps[-1] if steps else -1, where, ended_s, len(left))


def _stop(
    process: subprocess.Popen, pid: int, draw: random.Random
) -> str | None:
  """Stops a process of the run where a drawn aim says; the stage, or None."""
  aim, until = draw.choice(_AIMS), time.monotonic() + _AIMED_S
  while process.poll() is None:
    try:
      os.kill(pid, signal.SIGSTOP)
      stage = stages.find(pid)
      if aim in (None, stage) or time.monotonic() > until:
        return stage
      os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
      process.wait()  # One of several, and it has ended.
    time.sleep(draw.uniform(0, 0.05))
  return None


def _command(process: psutil.Process) -> list[str]:
  try:
    return process.cmdline()
  except psutil.Error:
    return []  # It has just ended.


def killed_run(
    begin: Callable[[], subprocess.Popen],
    workdir: pathlib.Path,
    *,
    draw: random.Random,
    starts_s: tuple[float, float],
    update_s: float,
    most: int,
) -> Iterator[Kill]:
  """Starts and kills a run until it ends by itself, or `most` kills are made.

  Args:
    begin: starts it, or takes it up.
    workdir: of the run.
    draw: of the instants, and of the process that is killed.
    starts_s: seconds that a start takes to its first update, and a resume.
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
    first_s = starts_s[reached >= 0]
    after_s = draw.uniform(0.3 * first_s, first_s + 2.5 * update_s)
    made = None
    try:
      process.wait(None if number == most else after_s)
    except subprocess.TimeoutExpired:
      made = kill(process, workdir, time.monotonic() - begun, draw)
    if made is None:
      if process.returncode:
        raise RuntimeError(
            f'{workdir}: a start ended with {process.returncode}.'
        )
      return
    if made.step < reached:
      raise RuntimeError(
          f'{workdir}: checkpoint {reached} was there, and after a kill the'
          f' last one is {made.step}.'
      )
    reached = made.step
    yield made
