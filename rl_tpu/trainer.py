"""The controller loop: one line per row of the data flow (design.md)."""

from collections.abc import Callable, Sequence
from typing import Any

from rl_tpu.assembly import opening
from rl_tpu.assembly import run as run_lib
from rl_tpu.config import schema
from rl_tpu.types import stops


def train(
    config: schema.ExperimentConfig,
    workdir: str,
    stop: Callable[[], bool] = lambda: False,
    *,
    on_start: Callable[[], None] = lambda: None,
    override_config: bool = False,
    allow_partial: Sequence[str] = (),
    interrupt: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
  """Trains until the steps, the time limit or `stop` end it.

  A second call with a used work directory goes on where it stopped.

  Args:
    config: the experiment.
    workdir: receives config.json, tb/, metrics.jsonl, rollouts/, checkpoints/
      and eval/.
    stop: asked once per update; True saves and ends in good order.
    on_start: called when everything is built and checked.
    override_config: a used work directory goes on with these settings, though
      it was started with others.
    allow_partial: parts that the checkpoint of a used one may lack; they begin
      anew.
    interrupt: asked while rollouts are gathered; True gives them up, saves
      what was trained before them and ends.

  Returns:
    Success before and after, seconds by phase, tokens per second, and where
    dashboards and checkpoint are.

  Raises:
    ValueError: a setting, file or directory that cannot work, before any work
      starts.
  """
  with opening.open_run(
      config,
      workdir,
      override_config=override_config,
      allow_partial=allow_partial,
      interrupt=interrupt,
  ) as run:
    on_start()
    try:
      _loop(run, stop)
    except stops.Interrupted:
      run.interrupt()
    return run.finish()


def _loop(run: run_lib.TrainingRun, stop: Callable[[], bool]) -> None:
  run.evaluate_first()
  while run.goes_on(stop):
    tasks = run.take_tasks()
    rollouts = run.collect(tasks)
    rollouts, admitted = run.admit(rollouts)
    batch = run.pack(admitted)
    scored = run.score(batch)
    advantage = run.normalise(batch, scored)
    report = run.update(batch, scored, advantage)
    run.publish()
    run.record(rollouts, admitted, batch, scored, advantage, report)
    run.evaluate_when_due()
    run.save_when_due()
