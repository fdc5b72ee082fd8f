"""Does a run whose environments fail lose what failed, and nothing else?

The environment itself writes down each fault before it happens
(`tests.chaos.unreliable`). What became of it is read from the run's files: the
rollouts, what was trained on, and the ledger of every update.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import rich.console
import rich.table

from rl_tpu.records import jsonl
from rl_tpu.records import records
from rl_tpu.types import termination as term
from tests.chaos import kills
from tests.chaos import unreliable

_LIMIT_S = 2.0
# On a busy machine; a hang is noticed by the limit alone, the rest at once.
_SLACK_S = 3.0
_PLACES = ('admitted', 'discarded', 'queued', 'running')


@dataclasses.dataclass(frozen=True)
class Fault:
  """A fault, and what became of it.

  Attributes:
    way: in which a step failed.
    rollout: in which it did; None where there is no such one.
    noticed_s: seconds until the rollout had ended.
  """

  way: str
  rollout: records.Rollout | None
  noticed_s: float


def changes(log: pathlib.Path) -> tuple[str, ...]:
  """Settings of the run, whose world writes its faults to `log`."""
  return (
      'environment.target=tests.chaos.unreliable:Unreliable',
      f'environment.settings={{"log": "{log}"}}',
      f'environment.step_timeout_s={_LIMIT_S}',
      'environment.memory_gib=4',
      'environment.workers=4',
      # No share of failures ends this run.
      'faults.max_share=1',
      'batching.tasks_per_batch=16',
      'evaluation.temperatures=1',
  )


def faults(
    log: pathlib.Path, rollouts: Sequence[records.Rollout]
) -> list[Fault]:
  """Every fault with the rollout of the seed that its world was given."""
  by_seed = {rollout.env_seed: rollout for rollout in rollouts}
  found = []
  for path in sorted(log.iterdir()):
    line = json.loads(path.read_text())
    rollout = by_seed.get(line['seed'])
    ended = rollout.t_end if rollout else float('nan')
    found.append(Fault(line['way'], rollout, ended - line['time']))
  return found


def problems(
    workdir: pathlib.Path,
    found: Sequence[Fault],
    rollouts: Mapping[int, Sequence[records.Rollout]],
    lines: Sequence[Mapping[str, float]],
) -> list[str]:
  """What is not as it has to be.

  Args:
    workdir: of the run.
    found: its faults.
    rollouts: of every update.
    lines: figures of every update.
  """
  wrong = []
  failed = {f.rollout.rollout_id for f in found if f.rollout is not None}
  for fault in found:
    ended = fault.rollout and fault.rollout.termination
    if ended is not term.Termination.INFRA_FAILURE:
      wrong.append(f'{fault.way}: its rollout ended as {ended}')
    elif fault.rollout.terminal_reward is not None:
      wrong.append(f'{fault.way}: its rollout was scored')
    if not fault.noticed_s <= _LIMIT_S + _SLACK_S:
      wrong.append(f'{fault.way}: noticed after {fault.noticed_s:.1f} s')
  for step, of_update in rollouts.items():
    path = jsonl.estimates_path(workdir, step)
    trained = {data['rollout_id'] for _, data in jsonl.read_lines(path)}
    if trained & failed:
      wrong.append(f'update {step} was trained on {sorted(trained & failed)}')
    whole = {r.rollout_id for r in of_update} - failed
    if trained != whole:
      missing = sorted(whole - trained)
      wrong.append(f'update {step} was not trained on {missing}')
  for line in lines:
    counted = sum(line[f'rollout/{place}'] for place in _PLACES)
    if counted != line['rollout/started']:
      wrong.append(f'update {line["step"]}: the ledger does not balance')
  return wrong


def check(
    experiment: pathlib.Path,
    folder: pathlib.Path,
    *,
    steps: int,
    console: rich.console.Console,
) -> int:
  """Makes the run and prints its table.

  Args:
    experiment: what is run, in the unreliable world.
    folder: receives its work directory.
    steps: updates.
    console: to print on.

  Returns:
    1 where a fault costs more than its rollout, or is not noticed in time.
  """
  workdir, log = folder / 'faults', folder / 'faults.log'
  log.mkdir()
  process = kills.start(
      experiment, workdir, steps=steps, devices=1, log=folder / 'run.log',
      changes=changes(log),
  )
  if kills.has_failed(process, folder / 'run.log', console):
    return 1
  rollouts = {
      step: list(jsonl.read(jsonl.rollouts_path(workdir, step)))
      for step in jsonl.steps(workdir)
  }
  judged = [
      rollout for path in sorted((workdir / 'eval').glob('*.jsonl'))
      for rollout in jsonl.read(path)
  ]
  found = faults(log, [*sum(rollouts.values(), []), *judged])
  text = (workdir / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  lines = [line for line in lines if 'rollout/started' in line]
  console.print(_table(found))
  started = int(lines[-1]['rollout/started'])
  admitted = int(lines[-1]['rollout/admitted'])
  lost_s = sum(f.noticed_s for f in found if f.way == 'hang')
  console.print(
      f'{len(rollouts)} updates; {started} rollouts started, {admitted} trained'
      f' on; {lost_s:.0f} s of workers went by in hangs, whose limit is'
      f' {_LIMIT_S:g} s a step'
  )
  wrong = problems(workdir, found, rollouts, lines)
  console.print(f'wrong: {", ".join(wrong) or "nothing"}')
  return int(bool(wrong) or len(rollouts) < steps)


def _table(found: Sequence[Fault]) -> rich.table.Table:
  table = rich.table.Table(
      'fault', 'times tried', 'rollouts lost', 'as', 'noticed in, mean s',
      'at most',
  )
  for way in unreliable.WAYS:
    of_way = [fault for fault in found if fault.way == way]
    causes = collections.Counter(
        fault.rollout.fault_cause.value for fault in of_way
        if fault.rollout is not None and fault.rollout.fault_cause is not None
    )
    seconds = [fault.noticed_s for fault in of_way] or [0.0]
    table.add_row(
        way, str(len(of_way)), str(sum(causes.values())), ', '.join(causes),
        f'{sum(seconds) / len(seconds):.2f}', f'{max(seconds):.2f}',
    )
  return table
