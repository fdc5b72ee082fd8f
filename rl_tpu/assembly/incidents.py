"""Which rollouts something happened to: a line of JSON an incident (L18)."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
import numpy as np

from rl_tpu.assembly import dumping
from rl_tpu.assembly import update_figures
from rl_tpu.learner import report as report_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.metrics import alarms as alarms_lib
from rl_tpu.records import records
from rl_tpu.rollout import batching

FILE = 'incidents.jsonl'


def record(
    workdir: str,
    step: int,
    report: report_lib.Report,
    batch: batching.Batch,
    scored: update_lib.Scored,
    advantage_BT: np.ndarray,
) -> list[str]:
  """Writes skipped steps and tokens over a limit to `incidents.jsonl`.

  A skipped step is an error in the log too: its minibatch is named in the
  file, with what was not finite and the ids of tasks, rollouts and segments,
  and its arrays are dumped.

  Returns:
    The dumps, as paths in `workdir`.
  """
  lines, dumped = [], []
  for found in update_figures.nonfinite(report, batch):
    found = dumping.dump(workdir, step, found, batch, scored, advantage_BT)
    dumped.append(found['dump'])
    lines.append({'kind': 'nonfinite', **found})
    logging.error(
        'update %d: the step of the %s on minibatch %d was skipped, because of'
        ' numbers that are not finite: %s. Its arrays are in %s of the work'
        ' directory (inspect --dump).',
        step, found['network'], found['minibatch'], dumping.summary(found),
        found['dump'],
    )
  over = update_figures.over_limit(report, batch)
  if over:
    lines.append({'update': step, 'kind': 'over_limit', 'tokens': over})
  _append(workdir, lines)
  return dumped


def alarm(
    workdir: str,
    step: int,
    alarms: Sequence[alarms_lib.Alarm],
    batch: batching.Batch,
) -> None:
  """Warns of alarms and writes them with the ids of the batch (C13)."""
  ids = [r.rollout_id for r in batch.rollouts]
  for found in alarms:
    logging.warning(
        'update %d: %s Rollouts: %s', step, found.message, ' '.join(ids)
    )
  _append(
      workdir,
      [
          {
              'update': step,
              'kind': 'alarm',
              'name': found.name,
              'message': found.message,
              'rollouts': ids,
          }
          for found in alarms
      ],
  )


def faults(
    workdir: str, step: int, failed: Sequence[records.Rollout]
) -> None:
  """Writes the infrastructure failures that stop a run (A5)."""
  lines = [
      {
          'update': step,
          'kind': 'infra_failure',
          'task_id': rollout.task_id,
          'rollout_id': rollout.rollout_id,
          'cause': rollout.fault_cause and rollout.fault_cause.value,
          'detail': rollout.fault_detail,
      }
      for rollout in failed
  ]
  _append(workdir, lines)


def settings(
    workdir: str, step: int, changed: Mapping[str, tuple[Any, Any]]
) -> None:
  """Warns that a run goes on with other settings, and writes them down."""
  for name, (before, now) in changed.items():
    logging.warning(
        'after update %d: %s = %s, before %s', step, name, now, before
    )
  _append(
      workdir, [{'update': step, 'kind': 'settings', 'changed': dict(changed)}]
  )


def hang(workdir: str, step: int, what: str, limit_s: float) -> None:
  """Writes what the devices have kept for too long (O6)."""
  line = {'update': step, 'kind': 'hang', 'what': what, 'limit_s': limit_s}
  _append(workdir, [line])


def begun_anew(workdir: str, step: int, parts: Sequence[str]) -> None:
  """Warns that a run goes on without parts of its checkpoint (O7)."""
  logging.warning(
      'checkpoint %d has no %s of these settings: begun anew.',
      step, ', '.join(parts),
  )
  _append(
      workdir, [{'update': step, 'kind': 'begun_anew', 'parts': list(parts)}]
  )


def _append(workdir: str, lines: Sequence[Mapping[str, Any]]) -> None:
  if not lines:
    return
  with open(os.path.join(workdir, FILE), 'a', encoding='utf-8') as file:
    file.writelines(json.dumps(line) + '\n' for line in lines)
