"""Runs tests on changed modules, each in a process forked from a warm one.

The parent imports the libraries that take long (jax among them) and nothing of
the package; no device is touched before the fork, because a started backend
does not survive one. A child imports the package anew with the changed source
in place of the file's, so the working tree is never written to, and runs pytest
until the first failure, or all tests that bear one of a few ids.
"""

import contextlib
import dataclasses
import enum
import importlib
import importlib.machinery
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests import algorithm_ids

# Imported before the first fork; what is missing is passed over.
_WARM = (
    'jax',
    'jax.numpy',
    'jax.experimental.pallas',
    'numpy',
    'optax',
    'flax.nnx',
    'orbax.checkpoint',
    'hypothesis.strategies',
    'absl.testing.parameterized',
    'rich.console',
    'tokenizers',
    'safetensors.numpy',
    'tensorboardX',
    '_pytest.assertion.rewrite',
    'pytest',
)
_COPIED = ('rl_tpu', 'tests', 'experiments')
# A mutant may take so many times the processor time of the clean tests.
_CPU_FACTOR, _CPU_SPARE_S = 6.0, 30.0
# Against waiting for ever; a paused machine must not run into it.
_WALL_S = 3600.0
_MEMORY = 16 * 2**30


class Outcome(str, enum.Enum):
  """What became of a mutant."""

  KILLED = 'killed'
  SURVIVED = 'survived'
  TIMEOUT = 'timeout'
  STILLBORN = 'stillborn'


@dataclasses.dataclass(frozen=True)
class Result:
  """What the tests said.

  Attributes:
    outcome: killed, survived, timeout (also noticed), or stillborn: the
      module does not even import.
    failed: names of the tests that failed.
    cpu_s: processor time.
    log: what pytest printed.
  """

  outcome: Outcome
  failed: tuple[str, ...]
  cpu_s: float
  log: str


@contextlib.contextmanager
def frozen_tree(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """A copy of package and tests to run in; others may edit the tree meanwhile.

  Becomes the working directory, and the first place of `sys.path`.
  """
  with tempfile.TemporaryDirectory(prefix='mutation-') as folder:
    copy = pathlib.Path(folder) / 'tree'
    for name in _COPIED:
      shutil.copytree(
          root / name,
          copy / name,
          ignore=shutil.ignore_patterns('__pycache__', 'ALGORITHMS.md.*'),
      )
    shutil.copy(root / 'pyproject.toml', copy / 'pyproject.toml')
    before, path = os.getcwd(), list(sys.path)
    os.chdir(copy)
    sys.path[:] = [str(copy)] + [
        entry for entry in path if entry not in ('', str(root))
    ]
    try:
      yield copy
    finally:
      os.chdir(before)
      sys.path[:] = path


def warm_up() -> None:
  """Imports what every child needs.

  Raises:
    RuntimeError: something of the package is loaded, or threads run.
  """
  for name in _WARM:
    with contextlib.suppress(ImportError):
      importlib.import_module(name)
  loaded = [name for name in sys.modules if name.split('.')[0] == 'rl_tpu']
  if loaded:
    raise RuntimeError(f'{loaded[0]} is loaded before the fork.')
  if threading.active_count() > 1:
    raise RuntimeError('threads run before the fork.')


class _Changed(importlib.machinery.SourceFileLoader):
  """Loads a module from a given source."""

  def __init__(self, name: str, path: str, source: str):
    super().__init__(name, path)
    self._source = source

  def get_code(self, fullname):
    return compile(self._source, self.path, 'exec', dont_inherit=True)


class _Finder:
  """Puts changed sources before the files."""

  def __init__(self, sources: Mapping[str, str]):
    self._sources = {
        module.removesuffix('.py').replace('/', '.'): (module, source)
        for module, source in sources.items()
    }

  def find_spec(self, name, path=None, target=None):
    del path, target
    if name not in self._sources:
      return None
    module, source = self._sources[name]
    path = os.path.abspath(module)
    return importlib.util.spec_from_file_location(
        name, path, loader=_Changed(name, path, source)
    )


class _Plugin:
  """Keeps the tests that bear one of the ids, and notes which tests failed."""

  def __init__(self, ids: Sequence[str]):
    self._ids = frozenset(ids)
    self.failed: list[str] = []

  def pytest_collection_modifyitems(self, items):
    if self._ids:
      items[:] = [
          item for item in items if self._ids & algorithm_ids.words(item.name)
      ]

  def pytest_runtest_logreport(self, report):
    if report.failed:
      self.failed.append(report.nodeid.split('::')[-1])


def _child(
    job: 'Job', arguments: Sequence[str], folder: pathlib.Path
) -> None:
  """Runs pytest in this process and writes down what it found."""
  out = os.open(folder / 'log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  os.dup2(out, 1)
  os.dup2(out, 2)
  if job.cpu_s is not None:
    limit = int(job.cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    import jax

    # Programs of mutants are not worth keeping.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 1e9)
  sys.meta_path.insert(0, _Finder(job.sources))
  import pytest

  plugin = _Plugin(job.ids)
  code = pytest.main(list(arguments), plugins=[plugin])
  (folder / 'result').write_text(
      json.dumps({'code': int(code), 'failed': plugin.failed})
  )


@dataclasses.dataclass
class Job:
  """A set of changed modules and the tests to run on it.

  Attributes:
    key: whatever the caller knows it by.
    sources: changed source by module path; empty runs the tests as they are.
    tests: test modules.
    ids: only tests that bear one of these are run, and all of them; without
      any, all tests until the first failure.
    cpu_s: limit of processor time; None is none.
  """

  key: Any
  sources: Mapping[str, str]
  tests: Sequence[str]
  ids: Sequence[str] = ()
  cpu_s: float | None = None


@dataclasses.dataclass
class _Running:
  job: Job
  folder: pathlib.Path
  started: float


def run(
    jobs: Sequence[Job],
    *,
    left_out: str,
    parallel: int = 1,
    done: Callable[[Job, Result], None],
) -> None:
  """Runs all jobs, a few at a time; call inside `frozen_tree`.

  Args:
    jobs: what to run.
    left_out: pytest's -k expression.
    parallel: processes at once.
    done: called for every job as it ends.
  """
  waiting, running = list(reversed(jobs)), {}
  flags = ['-q', '-p', 'no:cacheprovider', '--no-header', '-k', left_out]
  with tempfile.TemporaryDirectory(prefix='mutation-results-') as base:
    try:
      while waiting or running:
        while waiting and len(running) < parallel:
          job = waiting.pop()
          folder = pathlib.Path(tempfile.mkdtemp(dir=base))
          stop = [] if job.ids else ['-x']
          pid = _fork(job, [*job.tests, *flags, *stop], folder)
          running[pid] = _Running(job, folder, time.monotonic())
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if not pid:
          _stop_late(running)
          time.sleep(0.02)
          continue
        if pid in running:
          ended = running.pop(pid)
          done(ended.job, _result(ended.folder, status, usage))
          shutil.rmtree(ended.folder)
    finally:
      for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(
    job: Job, arguments: Sequence[str], folder: pathlib.Path
) -> int:
  sys.stdout.flush()
  sys.stderr.flush()
  with warnings.catch_warnings():
    # jax warns of every fork; its backends are not started here.
    warnings.simplefilter('ignore')
    pid = os.fork()
  if pid:
    return pid
  code = 1
  try:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _child(job, arguments, folder)
    code = 0
  finally:
    os._exit(code)


def _stop_late(running: Mapping[int, _Running]) -> None:
  for pid, entry in running.items():
    if time.monotonic() - entry.started > _WALL_S:
      os.kill(pid, signal.SIGKILL)


def _result(folder: pathlib.Path, status: int, usage: Any) -> Result:
  cpu_s = usage.ru_utime + usage.ru_stime
  path = folder / 'log'
  log = path.read_text('utf-8', errors='replace') if path.exists() else ''
  if not (folder / 'result').exists():
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (
        signal.SIGXCPU, signal.SIGKILL
    )
    # Whatever else ends a process (a crash, no memory) is noticed too.
    outcome = Outcome.TIMEOUT if late else Outcome.KILLED
    return Result(outcome, (), cpu_s, log)
  found = json.loads((folder / 'result').read_text())
  outcome = {
      0: Outcome.SURVIVED, 1: Outcome.KILLED, 2: Outcome.STILLBORN
  }.get(found['code'])
  if outcome is None:
    raise RuntimeError(f'pytest ended with code {found["code"]}:\n{log}')
  return Result(outcome, tuple(found['failed']), cpu_s, log)


def limit(baseline_cpu_s: float) -> float:
  """Processor time that a mutant may take."""
  return _CPU_FACTOR * baseline_cpu_s + _CPU_SPARE_S
