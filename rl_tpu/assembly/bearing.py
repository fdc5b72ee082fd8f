"""What a run bears of faults, and the report it stops with (A5, L18)."""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
from typing import Any

from rl_tpu.assembly import incidents
from rl_tpu.config import schema
from rl_tpu.metrics import summary
from rl_tpu.records import jsonl
from rl_tpu.records import records
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.rollout import ledger as ledger_lib
from rl_tpu.types import stops

# Shares of so many updates before it are named in the report.
_SHOWN = 5


@dataclasses.dataclass
class Bearing:
  """What is known of the updates before, resumes included.

  Attributes:
    shares: of infrastructure failures, the latest last.
    skipped: updates in a row with a skipped step.
    before: cursor, ledger and verifier noise of before the update under way;
      None while its rollouts are not being gathered.
  """

  shares: collections.deque[float] = dataclasses.field(
      default_factory=lambda: collections.deque(maxlen=_SHOWN)
  )
  skipped: int = 0
  before: tuple[dict[str, Any], ...] | None = None

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint: what a resume counts on from."""
    return {'shares': list(self.shares), 'skipped': self.skipped}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes on with what `state` gave."""
    self.shares.extend(state['shares'])
    self.skipped = state['skipped']


class _Saved(stops.RunStopped):
  """The report names the checkpoint that was saved for it."""


def begin(run: Any) -> None:
  """Remembers what a stop while rollouts are gathered goes back to."""
  run.bearing.before = (
      run.gathering.draws.state(),
      run.ledger.state(),
      run.gathering.noise.state(),
  )


@contextlib.contextmanager
def saves(run: Any) -> Iterator[None]:
  """Saves what was trained if a rule stops the run inside.

  An update whose rollouts are being gathered has not changed anything yet: its
  tasks and counts are taken back.

  Args:
    run: the training run.

  Raises:
    RunStopped: the same, with the checkpoint.
  """
  try:
    yield
  except (_Saved, stops.WriteFailed):
    raise
  except stops.RunStopped as stopped:
    raise _saved(run, str(stopped)) from stopped


def take_back(run: Any) -> None:
  """Takes tasks and counts of an update back whose rollouts are given up."""
  before, run.bearing.before = run.bearing.before, None
  if before is not None:
    draws, ledger, noise = before
    run.gathering.draws.restore(draws)
    run.ledger = ledger_lib.Ledger.from_state(ledger)
    run.gathering.noise.restore(noise)
    run.update_index -= 1


def _saved(run: Any, text: str) -> stops.RunStopped:
  """Saves, and returns the report that names the checkpoint."""
  take_back(run)
  if not run.update_index:
    return _Saved(f'{text} Nothing has been trained yet.')
  try:
    run.save()
    run.checkpoints.wait()
  except stops.WriteFailed as failed:
    return stops.WriteFailed(f'{text} {failed}')
  return _Saved(f'{text} {_goes_on_from(run, run.update_index)}')


def _goes_on_from(run: Any, step: int) -> str:
  folder = os.path.join(run.checkpoints.folder, str(step))
  return f'The same command goes on from the checkpoint {folder}.'


@contextlib.contextmanager
def names_checkpoint(run: Any) -> Iterator[None]:
  """Names the last checkpoint if a rule stops the run inside.

  For where an update is half done, and nothing can be saved.

  Args:
    run: the training run.

  Raises:
    RunStopped: the same, with the checkpoint.
  """
  try:
    yield
  except stops.RunStopped as stopped:
    step = run.world.hosts.of_lead(lambda: run.checkpoints.step('latest'))
    raise stops.RunStopped(f'{stopped} {_latest(run, step)}') from stopped


@contextlib.contextmanager
def full_disk(opened: Sequence[Any]) -> Iterator[None]:
  """Names the last good checkpoint where something cannot be written.

  Args:
    opened: holds the training run, once there is one.

  Raises:
    RunStopped: a disk or bucket did not take what was written inside.
  """
  try:
    yield
  except (stops.WriteFailed, OSError) as error:
    if isinstance(error, OSError):
      if error.errno not in stops.UNWRITABLE:
        raise
      error = f'{error.filename or "a file of the run"}: {error.strerror}.'
    # No other process is asked: it may have had no trouble.
    found = [_latest(run, run.checkpoints.step('latest')) for run in opened]
    raise stops.RunStopped(' '.join([str(error), *found])) from None


def hang_report(run: Any, what: str) -> str:
  """Says that the devices do not answer, and writes it down.

  No other process is asked anything: none of them may answer.

  Args:
    run: the training run.
    what: is waited for.

  Returns:
    The report, in one line.
  """
  step, limit = run.update_index, run.config.faults.device_wall_s
  incidents.hang(run.workdir, step, what, limit)
  run.mirror.push()
  return (
      f'update {step}: {what} has not come back from the devices for more than'
      f' faults.device_wall_s = {limit:g} s, and cannot be interrupted: this'
      f' process ends. {_latest(run, run.checkpoints.step("latest"))}'
  )


def _latest(run: Any, step: int | None) -> str:
  if step is None:
    return 'No checkpoint was saved yet (checkpoint.every).'
  return _goes_on_from(run, step)


def check_batch(
    run: Any,
    rollouts: Sequence[records.Rollout],
    admitted: admission_lib.Admission,
) -> None:
  """Stops a run whose batch holds too many infrastructure failures (A5).

  Its rollouts and figures are written all the same.

  Args:
    run: the training run.
    rollouts: of the update.
    admitted: their judgement.

  Raises:
    RunStopped: their share is above `faults.max_share`.
  """
  share = _share(rollouts)
  if share <= run.config.faults.max_share:
    run.bearing.shares.append(share)
    return
  step = run.update_index
  jsonl.write(jsonl.rollouts_path(run.workdir, step), rollouts)
  run.writer.scalars(
      step,
      summary.rollout_figures(admitted.judged, admitted.discarded)
      | run.ledger.figures(),
  )
  before = ', '.join(f'{s:.0%}' for s in run.bearing.shares)
  text = _faults_text(
      rollouts, f'update {step}', step, run.config.faults, run.workdir
  )
  text += f' The updates before had {before}.' if before else ''
  raise stops.RunStopped(text)


def check_evaluation(
    rollouts: Sequence[records.Rollout],
    *,
    what: str,
    step: int,
    faults: schema.FaultsConfig,
    workdir: str,
) -> None:
  """Stops where an evaluation has too many; its files are there.

  Args:
    rollouts: of the evaluation.
    what: names it.
    step: update that is evaluated.
    faults: what is borne.
    workdir: of the run.

  Raises:
    RunStopped: their share is above `faults.max_share`.
  """
  if _share(rollouts) > faults.max_share:
    raise stops.RunStopped(_faults_text(rollouts, what, step, faults, workdir))


def check_skipped(run: Any, dumped: Sequence[str]) -> None:
  """Stops a run that has skipped steps in too many updates (L18).

  Every one of them left its parameters as they were.

  Args:
    run: the training run, its update recorded.
    dumped: dumps of the update's skipped steps, in the work directory.

  Raises:
    RunStopped: `faults.max_skipped` updates in a row had a skipped step.
  """
  run.bearing.skipped = run.bearing.skipped + 1 if dumped else 0
  skipped = run.bearing.skipped
  if skipped < run.config.faults.max_skipped:
    return
  dump = os.path.join(run.mirror.workdir, dumped[0])
  raise stops.RunStopped(
      f'update {run.update_index}: {skipped} updates in a row had a step whose'
      ' loss or gradient is not finite (faults.max_skipped). See what was not:'
      f' python -m rl_tpu inspect --dump={dump}.'
  )


def _share(rollouts: Sequence[records.Rollout]) -> float:
  return len(summary.failed(rollouts)) / max(len(rollouts), 1)


def _faults_text(
    rollouts: Sequence[records.Rollout],
    what: str,
    step: int,
    faults: schema.FaultsConfig,
    workdir: str,
) -> str:
  failed = summary.failed(rollouts)
  incidents.faults(workdir, step, failed)
  counts = sorted(
      summary.fault_counts(rollouts).items(), key=lambda pair: -pair[1]
  )
  causes = ', '.join(f'{cause.value} {count}' for cause, count in counts)
  first = failed[0]
  detail = ' '.join((first.fault_detail or '').split())
  return (
      f'{what}: {len(failed)} of {len(rollouts)} rollouts'
      f' ({_share(rollouts):.0%}) ended as infra_failure, more than'
      f' faults.max_share = {faults.max_share:g}; by cause:'
      f' {causes}. The first is {first.rollout_id}: {detail[:200]}. All of them'
      f' are in {incidents.FILE}. Mend what fails, or raise faults.max_share.'
  )
