"""The mutation check: draws mutants, runs them, prints the tables."""

import argparse
import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import rich.table

from tests.mutation import faults
from tests.mutation import mutants
from tests.mutation import patches
from tests.mutation import results
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
    self._console = results.console()
    self._store = results.Store(arguments.out)
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

  def _faults(self) -> list[patches.Fault]:
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
    with results.Progress(self._console, 'clean tests', len(jobs)) as advance:

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
      stored = self._store.get(_name(job))
      if stored is None:
        waiting.append(job)
      else:
        found[job.key] = stored.outcome
    if not waiting:
      return found
    with results.Progress(self._console, what, len(waiting)) as advance:

      def done(job: runner.Job, result: runner.Result) -> None:
        found[job.key] = result.outcome
        self._store.add(_name(job), result)
        advance(result.outcome)

      runner.run(
          waiting,
          left_out=targets.LEFT_OUT,
          parallel=self._arguments.jobs,
          done=done,
      )
    return {job.key: found[job.key] for job in jobs}

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


def _with_text(mutant: mutants.Mutant, source: str) -> _Drawn:
  changed = mutants.apply(source, mutant)
  before, after = mutants.changed_line(source, changed, mutant.line)
  return _Drawn(mutant, changed, before, after)


def _name(job: runner.Job) -> str:
  """The same in every run as long as the changed modules are."""
  key = job.key
  title = key.mutant.name if isinstance(key, _Drawn) else key.name
  return results.name(title, job.sources)


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
