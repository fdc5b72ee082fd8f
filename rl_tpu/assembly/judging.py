"""Judges a stored checkpoint of a run on held-out tasks."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from rl_tpu.assembly import bearing
from rl_tpu.assembly import parts
from rl_tpu.assembly import policy as policy_lib
from rl_tpu.checkpointing import contents
from rl_tpu.checkpointing import store as store_lib
from rl_tpu.config import schema
from rl_tpu.evaluation import evaluate as evaluate_lib
from rl_tpu.records import jsonl
from rl_tpu.records import records


def evaluate(
    config: schema.ExperimentConfig,
    workdir: str,
    *,
    checkpoint: str = 'best',
    on_start: Callable[[], None] = lambda: None,
    on_rollouts: Callable[[list[records.Rollout]], None] = lambda _: None,
) -> dict[float, tuple[float, float, float]]:
  """Evaluates one checkpoint at every temperature of `evaluation`.

  Args:
    config: of the run, overrides of its evaluation applied.
    workdir: of the run; the figures go to `<workdir>/eval/`.
    checkpoint: best (by held-out success) or latest.
    on_start: called when everything is built and checked.
    on_rollouts: called with the rollouts of every temperature.

  Returns:
    Temperature to (point, low, high).

  Raises:
    ValueError: the run has no whole checkpoint.
    RunStopped: too many rollouts ended as infrastructure failures (A5).
  """
  store = store_lib.CheckpointStore(
      os.path.join(workdir, 'checkpoints'), config.checkpoint
  )
  step = store.step(checkpoint)
  if step is None:
    store.close()
    raise ValueError(
        f'--workdir={workdir}: it holds no checkpoint; train it first.'
    )
  policy = policy_lib.build_policy(config)
  learner = policy_lib.build_learner(config, policy.decoder, policy.mesh)
  sampler = policy_lib.build_sampler(config, policy)
  world = parts.build_world(config, policy.tokenizer, policy.template)
  try:
    state = learner.init_state(
        policy.params, with_critic=config.advantage.estimator == 'gae'
    )
    arrays, host = store.restore(
        step, {'actor': state.actor.params}, without=contents.HOST
    )
    state = state.with_parts(arrays)
    sampler.update_weights(
        host['policy_version'], state.policy_params, 'drain'
    )
    on_start()
    source = world.tasks('eval')

    def judge(rollouts: list[records.Rollout]) -> None:
      on_rollouts(rollouts)
      bearing.check_evaluation(
          rollouts,
          what=f'the evaluation of checkpoint {step}',
          step=step,
          faults=config.faults,
          workdir=workdir,
      )

    results = run_all(
        config, workdir, step, world, sampler,
        tasks=first_tasks(source, config.evaluation), suffix='-verb',
        on_rollouts=judge,
    )
    return {r.temperature: (r.success, r.low, r.high) for r in results}
  finally:
    world.close()
    store.close()


def first_tasks(
    source: Sequence[records.Task],
    config: schema.EvaluationConfig,
    count: int | None = None,
) -> list[records.Task]:
  """The held-out tasks that are evaluated: the first of the split."""
  count = count or config.final_tasks or config.tasks
  return [source[i] for i in range(min(count, len(source)))]


def run_all(
    config: schema.ExperimentConfig,
    workdir: str,
    step: int,
    world: parts.World,
    sampler: Any,
    *,
    tasks: Sequence[records.Task],
    suffix: str = '',
    on_end: Callable[[int, int], None] | None = None,
    on_rollouts: Callable[[list[records.Rollout]], None] = lambda _: None,
    serve: Callable[[Callable[[], Any]], Any] = lambda collect: collect(),
) -> list[evaluate_lib.Result]:
  """One evaluation per temperature; figures and rollouts go to `eval/`.

  Args:
    config: the experiment.
    workdir: receives `eval/`.
    step: update that is evaluated.
    world: tasks, environments and verifier.
    sampler: serves the weights.
    tasks: held-out tasks.
    suffix: of the files' names.
    on_end: called with (ended, all) for progress.
    on_rollouts: called with the rollouts of every temperature, once they are
      written.
    serve: calls what collects; again where the sampler had to be restarted.
  """
  folder = os.path.join(workdir, 'eval')
  os.makedirs(folder, exist_ok=True)
  results = []
  for temperature in config.evaluation.temperatures:
    sampling = dataclasses.replace(config.sampling, temperature=temperature)
    runner = world.runner(sampler, sampling, on_end=on_end)
    result, rollouts = evaluate_lib.evaluate(
        lambda jobs, runner=runner: serve(lambda: runner.collect(jobs)),
        tasks,
        temperature=temperature,
        seed=config.seed,
        resamples=config.evaluation.bootstrap,
    )
    results.append(result)
    stem = os.path.join(folder, f'{step:06d}-t{temperature:g}{suffix}')
    jsonl.write(stem + '.jsonl', rollouts)
    with open(stem + '.json', 'w', encoding='utf-8') as file:
      json.dump(dataclasses.asdict(result), file, indent=1)
    on_rollouts(rollouts)
  return results
