"""What a run bears of faults, and the report it stops with (A5, L18)."""

import collections
from collections.abc import Sequence
import dataclasses
import os
from typing import Any

from rl_tpu.assembly import incidents
from rl_tpu.metrics import summary
from rl_tpu.records import jsonl
from rl_tpu.records import records
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.types import stops

# Shares of so many updates before it are named in the report.
_SHOWN = 5


@dataclasses.dataclass
class Bearing:
  """What is known of the updates before.

  Attributes:
    shares: of infrastructure failures, the latest last.
    skipped: updates in a row with a skipped step.
  """

  shares: collections.deque[float] = dataclasses.field(
      default_factory=lambda: collections.deque(maxlen=_SHOWN)
  )
  skipped: int = 0


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
  text = _faults_text(run, f'update {step}', rollouts)
  text += f' The updates before had {before}.' if before else ''
  raise stops.RunStopped(f'{text} {resumes_from(run)}')


def check_evaluation(run: Any, rollouts: Sequence[records.Rollout]) -> None:
  """Stops a run whose evaluation has too many; what was trained is saved.

  Args:
    run: the training run, between two updates.
    rollouts: of the evaluation.

  Raises:
    RunStopped: their share is above `faults.max_share`.
  """
  if _share(rollouts) <= run.config.faults.max_share:
    return
  what = f'the evaluation after update {run.update_index}'
  text = _faults_text(run, what, rollouts)
  if run.update_index:
    run.save()
  raise stops.RunStopped(f'{text} {resumes_from(run)}')


def check_skipped(run: Any, dumped: Sequence[str]) -> None:
  """Stops a run that has skipped steps in too many updates (L18).

  Every one of them left its parameters as they were, and what there is is
  saved.

  Args:
    run: the training run, its update recorded.
    dumped: dumps of the update's skipped steps, in the work directory.

  Raises:
    RunStopped: `faults.max_skipped` updates in a row had a skipped step.
  """
  run.bearing.skipped = run.bearing.skipped + 1 if dumped else 0
  limit = run.config.faults.max_skipped
  if run.bearing.skipped < limit:
    return
  run.save()
  dump = os.path.join(run.mirror.workdir, dumped[0])
  raise stops.RunStopped(
      f'update {run.update_index}: {limit} updates in a row had a step whose'
      ' loss or gradient is not finite (faults.max_skipped). See what was not:'
      f' python -m rl_tpu inspect --dump={dump}. {resumes_from(run)}'
  )


def resumes_from(run: Any) -> str:
  """Names the last good checkpoint."""
  step = run.world.hosts.of_lead(lambda: run.checkpoints.step('latest'))
  if step is None:
    return 'No checkpoint was saved yet (checkpoint.every).'
  return (
      'The last good checkpoint, from which the same command goes on, is'
      f' {os.path.join(run.checkpoints.folder, str(step))}.'
  )


def _share(rollouts: Sequence[records.Rollout]) -> float:
  return len(summary.failed(rollouts)) / max(len(rollouts), 1)


def _faults_text(
    run: Any, what: str, rollouts: Sequence[records.Rollout]
) -> str:
  failed = summary.failed(rollouts)
  incidents.faults(run.workdir, run.update_index, failed)
  counts = sorted(
      summary.fault_counts(rollouts).items(), key=lambda pair: -pair[1]
  )
  causes = ', '.join(f'{cause.value} {count}' for cause, count in counts)
  first = failed[0]
  detail = ' '.join((first.fault_detail or '').split())
  return (
      f'{what}: {len(failed)} of {len(rollouts)} rollouts'
      f' ({_share(rollouts):.0%}) ended as infra_failure, more than'
      f' faults.max_share = {run.config.faults.max_share:g}; by cause:'
      f' {causes}. The first is {first.rollout_id}: {detail[:200]}. All of them'
      f' are in {incidents.FILE}. Mend what fails, or raise faults.max_share.'
  )
