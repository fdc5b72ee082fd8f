"""The mutation check: draws mutants, runs them, prints the tables."""

import argparse
import collections
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence

import rich.console
import rich.progress
import rich.table

from tests import algorithm_ids
from tests.mutation import faults
from tests.mutation import mutants
from tests.mutation import runner
from tests.mutation import targets

_NEEDED = 0.9
_NOTICED = (runner.Outcome.KILLED, runner.Outcome.TIMEOUT)
_EQUIVALENT = pathlib.Path(__file__).with_name('equivalent.json')


@dataclasses.dataclass(frozen=True)
class _Drawn:
  """A mutant with its text.

  Attributes:
    mutant: which.
    source: of the changed module.
    before: the line of the change, stripped.
    after: what stands there instead.
  """

  mutant: mutants.Mutant
  source: str
  before: str
  after: str

  @property
  def key(self) -> tuple[str, str, str, str]:
    """What `equivalent.json` knows it by."""
    return self.mutant.module, self.mutant.operator, self.before, self.after


class Check:
  """One run."""

  def __init__(self, root: pathlib.Path, arguments: argparse.Namespace):
    """Takes the project's root and the command line."""
    self._root = root
    self._arguments = arguments
    self._console = rich.console.Console()
    if not self._console.is_terminal:
      self._console.width = 120
    self._stored = self._read_stored()
    self._failed_ids: collections.Counter[str] = collections.Counter()
    self._limits: dict[tuple[str, ...], float] = {}

  def run(self) -> int:
    """Runs everything; 0 if enough was noticed, 1 if not."""
    runner.warm_up()
    with runner.frozen_tree(self._root) as tree:
      tests_of = targets.tests_of(tree)
      drawn, equivalent = self._draw(tree, tests_of)
      chosen = self._faults()
      patched = {fault: fault.sources(tree) for fault in chosen}
      if self._arguments.list:
        self._console.print(f'{len(drawn)} mutants, {len(chosen)} faults.')
        return 0
      wanted = {tests_of[d.mutant.module] for d in drawn}
      self._measure(wanted | {fault.tests for fault in chosen})
      found = self._run([
          runner.Job(d, {d.mutant.module: d.source}, tests_of[d.mutant.module])
          for d in drawn
      ], 'mutants')
      caught = self._run([
          runner.Job(fault, sources, fault.tests)
          for fault, sources in patched.items()
      ], 'faults')
    passed = self._show_mutants(found, equivalent)
    passed &= self._show_faults(caught)
    if self._arguments.ids:
      self._show_ids()
    return 0 if passed else 1

  # --- what is run -------------------------------------------------------

  def _selected(self, module: str) -> bool:
    chosen = self._arguments.module
    return not chosen or any(text in module for text in chosen)

  def _draw(self, tree, tests_of) -> tuple[list[_Drawn], Mapping[str, int]]:
    """Mutants to run, and how many equivalent ones each module has."""
    if self._arguments.what == 'faults':
      return [], {}
    sources = {
        module: mutants.read(tree, module)
        for module in tests_of
        if self._selected(module)
    }
    everything = [
        mutant
        for module, source in sources.items()
        for mutant in mutants.of_source(module, source)
    ]
    chosen = mutants.sample(
        everything, self._arguments.sample, self._arguments.seed
    )
    known = _read_equivalent()
    drawn, equivalent = [], collections.Counter()
    for mutant in chosen:
      made = _with_text(mutant, sources[mutant.module])
      if made.key in known:
        equivalent[mutant.module] += 1
      else:
        drawn.append(made)
    if self._arguments.sample is None:
      _check_used(known, sources, everything)
    return drawn, equivalent

  def _faults(self) -> list[faults.Fault]:
    if self._arguments.what == 'mutants':
      return []
    return [
        fault
        for fault in faults.FAULTS
        if any(self._selected(module) for module, _, _ in fault.edits)
    ]

  def _measure(self, sets_of_tests: set[tuple[str, ...]]) -> None:
    """Runs the tests on the clean modules; gives the limits of time.

    Raises:
      ValueError: tests that fail before anything is changed.
    """
    jobs = [runner.Job(tests, {}, tests) for tests in sorted(sets_of_tests)]
    with self._progress('clean tests', len(jobs)) as advance:

      def done(job: runner.Job, result: runner.Result) -> None:
        if result.outcome != runner.Outcome.SURVIVED:
          raise ValueError(f'tests fail on clean modules:\n{result.log}')
        self._limits[job.key] = runner.limit(result.cpu_s)
        advance(None)

      runner.run(
          jobs,
          left_out=targets.LEFT_OUT,
          parallel=self._arguments.jobs,
          done=done,
      )

  def _run(self, jobs: Sequence[runner.Job], what: str):
    """Results by key, those of earlier runs included."""
    found = {}
    waiting = []
    for job in jobs:
      job.cpu_s = self._limits[tuple(job.tests)]
      stored = self._stored.get(_name(job))
      if stored is None or self._arguments.ids:
        waiting.append(job)
      else:
        found[job.key] = runner.Outcome(stored['outcome'])
    if not waiting:
      return found
    with self._progress(what, len(waiting)) as advance:

      def done(job: runner.Job, result: runner.Result) -> None:
        found[job.key] = result.outcome
        for name in result.failed:
          self._failed_ids.update(algorithm_ids.words(name))
        self._store(job, result)
        advance(result.outcome)

      runner.run(
          waiting,
          left_out=targets.LEFT_OUT,
          parallel=self._arguments.jobs,
          to_the_end=self._arguments.ids,
          done=done,
      )
    return {job.key: found[job.key] for job in jobs}

  def _progress(self, what: str, total: int):
    return _Progress(self._console, what, total)

  # --- results on disk ---------------------------------------------------

  def _read_stored(self) -> dict[str, dict[str, str]]:
    path = self._arguments.out
    if path is None or not pathlib.Path(path).exists():
      return {}
    lines = pathlib.Path(path).read_text('utf-8').splitlines()
    return {(line := json.loads(text))['name']: line for text in lines}

  def _store(self, job: runner.Job, result: runner.Result) -> None:
    if self._arguments.out is None:
      return
    line = {
        'name': _name(job),
        'outcome': result.outcome.value,
        'failed': result.failed,
        'cpu_s': round(result.cpu_s, 2),
    }
    with open(self._arguments.out, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')

  # --- what is shown -----------------------------------------------------

  def _show_mutants(self, found, equivalent) -> bool:
    if not found and not equivalent:
      return True
    outcomes = list(runner.Outcome)
    table = rich.table.Table(
        'module', *(o.value for o in outcomes), 'equivalent', 'noticed',
        title='mechanical mutants', box=None,
    )
    counts = collections.defaultdict(collections.Counter)
    for drawn, outcome in found.items():
      counts[drawn.mutant.module][outcome] += 1
    for module in sorted(set(counts) | set(equivalent)):
      row = counts[module]
      table.add_row(
          module.removeprefix('rl_tpu/'),
          *(str(row[o]) for o in outcomes),
          str(equivalent.get(module, 0)),
          _percent(_rate(row)),
      )
    total = sum(counts.values(), collections.Counter())
    table.add_row(
        'all',
        *(str(total[o]) for o in outcomes),
        str(sum(equivalent.values())),
        _percent(_rate(total)),
    )
    self._console.print(table)
    survivors = [d for d, o in found.items() if o == runner.Outcome.SURVIVED]
    for drawn in survivors:
      mutant = drawn.mutant
      self._console.print(
          f'survived: {mutant.module}:{mutant.line} {mutant.operator}\n'
          f'  - {drawn.before}\n  + {drawn.after}',
          markup=False, highlight=False,
      )
    rate = _rate(total)
    return rate is None or rate >= _NEEDED

  def _show_faults(self, caught) -> bool:
    if not caught:
      return True
    table = rich.table.Table(
        'fault', 'breaks', 'tests', title='classic faults', box=None
    )
    for fault, outcome in caught.items():
      table.add_row(fault.name, fault.ids, outcome.value)
    self._console.print(table)
    missed = [f.name for f, o in caught.items() if o not in _NOTICED]
    self._console.print(f'{len(caught) - len(missed)} of {len(caught)} caught.')
    return not missed

  def _show_ids(self) -> None:
    named = algorithm_ids.all_tests()
    index = algorithm_ids.index(algorithm_ids.REFERENCE.read_text('utf-8'))
    ids = [id_ for part in index.values() for id_ in part if id_ in named]
    missing = [id_ for id_ in ids if not self._failed_ids[id_]]
    self._console.print(
        f'{len(ids) - len(missing)} of {len(ids)} ids that tests name had a'
        f' test fail. None failed for: {" ".join(missing) or "-"}'
    )


class _Progress:
  """A line that counts; a plain one every so often where no one watches."""

  def __init__(self, console, what: str, total: int):
    self._console, self._what, self._total = console, what, total
    self._counts: collections.Counter[str] = collections.Counter()
    self._bar = rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TimeElapsedColumn(),
        console=console,
    )

  def __enter__(self):
    self._bar.__enter__()
    self._task = self._bar.add_task(self._what, total=self._total)
    return self._advance

  def __exit__(self, *exception):
    self._bar.__exit__(*exception)

  def _advance(self, outcome) -> None:
    self._counts['done'] += 1
    if outcome is not None:
      self._counts[outcome.value] += 1
    parts = [f'{k} {n}' for k, n in self._counts.items() if k != 'done']
    text = ' '.join([self._what, *parts])
    self._bar.update(self._task, advance=1, description=text)
    if not self._console.is_terminal and not self._counts['done'] % 25:
      self._console.print(f'{self._counts["done"]}/{self._total} {text}')


def _with_text(mutant: mutants.Mutant, source: str) -> _Drawn:
  changed = mutants.apply(source, mutant)
  before, after = mutants.changed_line(source, changed, mutant.line)
  return _Drawn(mutant, changed, before, after)


def _name(job: runner.Job) -> str:
  """The same in every run as long as the changed modules are."""
  digest = hashlib.blake2b(digest_size=8)
  for module, source in sorted(job.sources.items()):
    digest.update(f'{module}\n{source}\n'.encode())
  key = job.key
  title = key.mutant.name if isinstance(key, _Drawn) else key.name
  return f'{title} {digest.hexdigest()}'


def _read_equivalent() -> dict[tuple[str, str, str, str], str]:
  """Reason by (module, operator, line, mutated line)."""
  entries = json.loads(_EQUIVALENT.read_text('utf-8'))
  return {
      (e['module'], e['operator'], e['line'], e['mutated']): e['reason']
      for e in entries
  }


def _check_used(known, sources, everything) -> None:
  """Refuses entries of equivalent.json that fit no mutant any more."""
  found = {
      _with_text(mutant, sources[mutant.module]).key
      for mutant in everything
      if any(k[0] == mutant.module and k[1] == mutant.operator for k in known)
  }
  stale = [k for k in known if k[0] in sources and k not in found]
  if stale:
    raise ValueError(
        f'equivalent.json names what is no mutant any more: {stale[0]}'
    )


def _rate(counts: Mapping[runner.Outcome, int]) -> float | None:
  """Share noticed of the mutants that import."""
  noticed = sum(counts[o] for o in _NOTICED)
  total = noticed + counts[runner.Outcome.SURVIVED]
  return noticed / total if total else None


def _percent(rate: float | None) -> str:
  return '-' if rate is None else f'{100 * rate:.0f} %'
