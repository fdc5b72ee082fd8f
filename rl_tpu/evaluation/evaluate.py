"""Independent evaluation: held-out tasks, a fixed budget, an interval (A3)."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from rl_tpu.metrics import intervals
from rl_tpu.metrics import noise as noise_lib
from rl_tpu.records import records
from rl_tpu.rollout import session as session_lib
from rl_tpu.types import termination as term

_UNCOUNTED = (
    term.Termination.INFRA_FAILURE,
    term.Termination.CANCELLED,
)


@dataclasses.dataclass(frozen=True)
class Result:
  """What one evaluation at one temperature found.

  Attributes:
    temperature: 0 is greedy.
    success: mean over tasks; truncated runs count by their record (2.2).
    low: lower end of the 95 % interval over tasks.
    high: its upper end.
    tasks: tasks evaluated.
    scored: of these, scored ones.
    excluded: infrastructure failures, not in the mean.
    mean_score: mean of the verifier's score over scored rollouts.
    multi_segment: share of rollouts with two or more segments.
    segments: mean segments per rollout.
    tokens: sampled tokens, all rollouts.
    interval_seed: seed of the resampling.
    verifier_disagreement: share of second scores that differed, the noise
      floor of the interval (D8); None where nothing was scored twice.
  """

  temperature: float
  success: float
  low: float
  high: float
  tasks: int
  scored: int
  excluded: int
  mean_score: float
  multi_segment: float
  segments: float
  tokens: int
  interval_seed: int
  verifier_disagreement: float | None = None


def evaluate(
    collect: Callable[[Sequence[session_lib.Job]], list[records.Rollout]],
    tasks: Sequence[records.Task],
    *,
    temperature: float,
    seed: int,
    resamples: int,
) -> tuple[Result, list[records.Rollout]]:
  """Runs every task once and states success with its interval.

  Args:
    collect: the runner of this temperature.
    tasks: held-out tasks.
    temperature: named in the result.
    seed: sampling and environment seeds derive from it and the task, so two
      checkpoints are judged on the same draws.
    resamples: of the bootstrap.
  """
  jobs = [
      session_lib.Job(
          rollout_id=f'eval-{temperature:g}-{index}-{task.task_id}',
          task=task,
          seed=session_lib.derive_seed(seed, 'eval', task.task_id),
      )
      for index, task in enumerate(tasks)
  ]
  rollouts = collect(jobs)
  return summarise(rollouts, temperature, seed, resamples), rollouts


def summarise(
    rollouts: Sequence[records.Rollout],
    temperature: float,
    seed: int,
    resamples: int,
) -> Result:
  """The figures of ended rollouts, one task each."""
  counted = [r for r in rollouts if r.termination not in _UNCOUNTED]
  solved = {r.rollout_id: float(bool(r.solved)) for r in counted}
  scores = [
      r.terminal_reward for r in counted if r.terminal_reward is not None
  ]
  point, low, high = intervals.task_bootstrap(
      solved, resamples=resamples, seed=seed
  )
  segments = np.array([r.num_segments for r in counted] or [0])
  noise = noise_lib.VerifierNoise()
  noise.record(rollouts)
  return Result(
      temperature=temperature,
      success=point,
      low=low,
      high=high,
      tasks=len(rollouts),
      scored=len(scores),
      excluded=len(rollouts) - len(counted),
      mean_score=float(np.mean(scores)) if scores else 0.0,
      multi_segment=float(np.mean(segments > 1)),
      segments=float(segments.mean()),
      tokens=sum(r.num_actions for r in counted),
      interval_seed=seed,
      verifier_disagreement=noise.disagreement(),
  )
