"""Does a test that bears an id fail under a fault of that rule?"""

import argparse
import functools
import pathlib
from collections.abc import Mapping, Sequence

import rich.table

from tests import algorithm_ids
from tests.mutation import faults
from tests.mutation import id_faults_data
from tests.mutation import id_faults_learning
from tests.mutation import patches
from tests.mutation import results
from tests.mutation import runner
from tests.mutation import targets

# In the order in which they are tried for an id.
FAULTS = (
    *id_faults_data.FAULTS,
    *id_faults_learning.FAULTS,
    *faults.FAULTS,
)


def bearing(root: pathlib.Path, fault: patches.Fault) -> dict[str, set[str]]:
  """Test modules of a fault -> which of its ids their tests bear, if any."""
  found = {}
  for module in fault.tests:
    borne = set(fault.ids.split()) & _named(root / module)
    if borne:
      found[module] = borne
  return found


@functools.cache
def _named(path: pathlib.Path) -> frozenset[str]:
  """Ids that the tests of a module name."""
  return frozenset(algorithm_ids.tests_by_id([path]))


def candidates(root: pathlib.Path) -> dict[str, list[patches.Fault]]:
  """Every id that tests name -> its faults whose tests bear it."""
  named = algorithm_ids.all_tests()
  index = algorithm_ids.index(algorithm_ids.REFERENCE.read_text('utf-8'))
  found = {
      id_: [] for ids in index.values() for id_ in ids if id_ in named
  }
  for fault in FAULTS:
    for id_ in set().union(*bearing(root, fault).values()) & set(found):
      found[id_].append(fault)
  return found


class IdCheck:
  """One run: the faults of an id are tried until one makes its test fail."""

  def __init__(self, root: pathlib.Path, arguments: argparse.Namespace):
    """Takes the project's root and the command line."""
    self._root = root
    self._arguments = arguments
    self._console = results.console()
    self._store = results.Store(arguments.out)
    self._clean: dict[str, float] = {}
    self._results: dict[patches.Fault, runner.Result] = {}

  def run(self) -> int:
    """Runs everything; 0 if every id has a fault that its test notices."""
    runner.warm_up()
    with runner.frozen_tree(self._root) as tree:
      tried = {
          id_: [fault for fault in found if self._selected(fault)]
          for id_, found in candidates(tree).items()
      }
      if self._arguments.module:
        tried = {id_: found for id_, found in tried.items() if found}
      if self._arguments.list:
        self._console.print(
            f'{len(tried)} ids, {sum(map(bool, tried.values()))} with a fault.'
        )
        return 0
      while waiting := {
          fault: None for id_, found in tried.items()
          if (fault := self._next(id_, found)) is not None
      }:
        self._try(tree, list(waiting))
    return self._show(tried)

  def _selected(self, fault: patches.Fault) -> bool:
    chosen = self._arguments.module
    return not chosen or any(
        text in module for module, _, _ in fault.edits for text in chosen
    )

  def _next(
      self, id_: str, found: Sequence[patches.Fault]
  ) -> patches.Fault | None:
    """The fault to try now; None if one was noticed or all were tried."""
    for fault in found:
      if fault not in self._results:
        return fault
      if self._failed(id_, fault):
        return None
    return None

  def _failed(self, id_: str, fault: patches.Fault) -> list[str]:
    """Tests that bear the id and failed under the fault."""
    failed = self._results[fault].failed
    return [name for name in failed if id_ in algorithm_ids.words(name)]

  def _try(
      self, tree: pathlib.Path, chosen: Sequence[patches.Fault]
  ) -> None:
    """Runs, under every fault, the tests that bear its ids."""
    jobs, names = [], {}
    for fault in chosen:
      borne = bearing(tree, fault)
      sources = fault.sources(tree)
      texts = {test: (tree / test).read_text('utf-8') for test in borne}
      names[fault] = results.name(f'id: {fault.name}', sources | texts)
      stored = self._store.get(names[fault])
      if stored is not None:
        self._results[fault] = stored
        continue
      ids = sorted(set().union(*borne.values()))
      jobs.append(runner.Job(fault, sources, tuple(borne), ids))
    if not jobs:
      return
    self._measure(jobs)
    for job in jobs:
      job.cpu_s = runner.limit(sum(self._clean[test] for test in job.tests))

    def done(job: runner.Job, result: runner.Result) -> None:
      self._results[job.key] = result
      self._store.add(names[job.key], result)

    self._run(jobs, 'faults', done)

  def _measure(self, jobs: Sequence[runner.Job]) -> None:
    """Runs the same tests on the clean modules; gives the limits of time.

    Raises:
      ValueError: tests that fail before anything is changed.
    """
    ids_of: dict[str, set[str]] = {}
    for job in jobs:
      for test in job.tests:
        ids_of.setdefault(test, set()).update(job.ids)

    def done(job: runner.Job, result: runner.Result) -> None:
      if result.outcome != runner.Outcome.SURVIVED:
        raise ValueError(f'tests fail on clean modules:\n{result.log}')
      self._clean[job.key] = result.cpu_s

    self._run(
        [
            runner.Job(test, {}, (test,), sorted(ids))
            for test, ids in ids_of.items()
        ],
        'clean tests', done,
    )

  def _run(self, jobs, what, done) -> None:
    with results.Progress(self._console, what, len(jobs)) as advance:

      def ended(job: runner.Job, result: runner.Result) -> None:
        done(job, result)
        advance(result.outcome)

      runner.run(
          jobs,
          left_out=targets.LEFT_OUT,
          parallel=self._arguments.jobs,
          done=ended,
      )

  def _show(self, tried: Mapping[str, Sequence[patches.Fault]]) -> int:
    table = rich.table.Table(
        'id', 'fault', 'a test that fails', title='ids', box=None
    )
    missing = []
    for id_, found in tried.items():
      noticed = False
      for fault in found:
        if fault not in self._results:
          break
        failed = self._failed(id_, fault)
        outcome = self._results[fault].outcome.value
        table.add_row(
            id_, fault.name, failed[0] if failed else f'none ({outcome})'
        )
        noticed = bool(failed)
        if noticed:
          break
      if not noticed:
        missing.append(id_)
    self._console.print(table)
    self._console.print(
        f'{len(tried) - len(missing)} of {len(tried)} ids that tests name have'
        f' a fault that such a test notices. Left: {" ".join(missing) or "-"}'
    )
    return 1 if missing else 0
