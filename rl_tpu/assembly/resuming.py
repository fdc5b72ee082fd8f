"""What a run leaves in a checkpoint, and how it is taken up again (O7)."""

from collections.abc import Callable, Collection
from typing import Any

from absl import logging

from rl_tpu.advantages import normalise
from rl_tpu.assembly import incidents
from rl_tpu.checkpointing import contents
from rl_tpu.config import loading
from rl_tpu.records import jsonl
from rl_tpu.rollout import ledger as ledger_lib


def host_part(run: Any) -> dict[str, Any]:
  """JSON values of a training run, by the parts of `checkpointing.contents`."""
  settings = loading.to_dict(run.config)
  return {
      'policy_version': run.version,
      'update': run.update_index,
      'cursor': run.gathering.draws.state(),
      'sampling': run.gathering.state(),
      'config': settings,
      'config_hash': contents.digest(settings),
      'seed': run.config.seed,
      'reference_id': run.reference_id,
      'reference_hash': run.reference_hash,
      'ledger': run.ledger.state(),
      'unscored': run.anchors.unscored,
      'reward_statistics': normalise.state(run.running),
      'overflow': run.history.overflow,
      'warm_up': run.warm_up.state(),
      'alarms': run.watch.state(),
      'faults': run.bearing.state(),
      'sampler_restarts': run.serving.restarts,
      'gates': run.gates.state(run.watch.calibration),
      # Every batch is collected and consumed within its update, so no rollout
      # is queued at a save.
      'queue': [],
      'training_s': run.training_s(),
      'totals': run.totals,
      'results': run.results,
      'metrics': run.writer.tail if run.writer else [],
  }


def restore(
    run: Any,
    *,
    without: Collection[str] = (),
    check: Callable[[dict[str, Any]], None] = lambda host: None,
) -> dict[str, Any] | None:
  """Takes up the latest whole checkpoint, if there is one.

  Args:
    run: a fresh training run.
    without: parts that may be missing; they stay as they are in a fresh run.
    check: called with the checkpoint's JSON values before anything is changed;
      raises where they do not go with this run.

  Returns:
    The checkpoint's JSON values by part; None without a checkpoint.

  Raises:
    ValueError: no checkpoint can be read, or the latest lacks another part.
  """
  for step in run.checkpoints.ignored_steps():
    logging.warning('checkpoint %d is not whole and is ignored', step)
  wanted = run.state.parts
  found = run.checkpoints.restore_latest(wanted, without=without)
  if found is None:
    return None
  step, arrays, host, problems = found
  check(host)
  for problem in problems:
    logging.warning('%s; it was deleted, and the one before is taken', problem)
  fresh = host_part(run)
  anew = [n for n in (*wanted, *fresh) if n not in (*arrays, *host)]
  run.state = run.state.with_parts(arrays)
  _take_up(run, fresh | host)
  jsonl.discard_after(run.workdir, step)
  if anew:
    incidents.begun_anew(run.workdir, step, anew)
  run.progress.on_resume(run.update_index)
  return fresh | host


def _take_up(run: Any, host: dict[str, Any]) -> None:
  run.update_index = host['update']
  run.version = host['policy_version']
  run.gathering.draws.restore(host['cursor'])
  run.gathering.restore(host['sampling'])
  run.ledger = ledger_lib.Ledger.from_state(host['ledger'])
  run.anchors.unscored = host['unscored']
  run.running = normalise.from_state(host['reward_statistics'])
  run.history.overflow = host['overflow']
  run.warm_up.restore(host['warm_up'])
  run.watch.restore(host['alarms'])
  run.bearing.restore(host['faults'])
  run.serving.restarts = host['sampler_restarts']
  run.gates.restore(host['gates'])
  run.earlier_s = host['training_s']
  run.totals = host['totals']
  run.results = host['results']
