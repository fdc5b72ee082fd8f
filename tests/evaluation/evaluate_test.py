"""A3, A6, K35: what an evaluation counts."""

import dataclasses

from absl.testing import absltest

from rl_tpu.evaluation import evaluate
from rl_tpu.records import records
from rl_tpu.types import termination as term
from tests.learner import recorded


def _ended(solved, kind=term.Termination.POLICY_STOP, reward=0.5):
  base = recorded.rollouts(24, count=1)[0]
  return dataclasses.replace(
      base, solved=solved, termination=kind, terminal_reward=reward
  )


def _named(rollouts):
  return [
      dataclasses.replace(r, rollout_id=f'r{i}') for i, r in enumerate(rollouts)
  ]


class EvaluateTest(absltest.TestCase):

  def test_A3_success_is_the_mean_over_tasks_with_an_interval(self):
    rollouts = _named([_ended(True)] * 3 + [_ended(False)])
    result = evaluate.summarise(rollouts, 1.0, seed=0, resamples=2000)
    self.assertEqual(result.success, 0.75)
    self.assertLess(result.low, 0.75)
    self.assertGreaterEqual(result.high, 0.75)
    self.assertEqual((result.tasks, result.scored, result.excluded), (4, 4, 0))

  def test_K35_an_infrastructure_failure_is_excluded_and_counted(self):
    fault = _ended(None, term.Termination.INFRA_FAILURE, None)
    rollouts = _named([_ended(True), _ended(False), fault])
    result = evaluate.summarise(rollouts, 1.0, seed=0, resamples=100)
    self.assertEqual(result.success, 0.5)
    self.assertEqual((result.tasks, result.excluded), (3, 1))

  def test_an_unsolved_truncation_is_a_failure(self):
    cut = _ended(None, term.Termination.BUDGET_TRUNCATION, None)
    result = evaluate.summarise(
        _named([_ended(True), cut]), 1.0, seed=0, resamples=100
    )
    self.assertEqual(result.success, 0.5)
    self.assertEqual(result.scored, 1)

  def test_every_task_runs_once_on_a_seed_of_its_own(self):
    tasks = [records.Task(f't{i}', 's', 'f', 0, {}) for i in range(5)]
    seen = []

    def collect(jobs):
      seen.extend(jobs)
      return _named([_ended(True)] * len(jobs))

    evaluate.evaluate(collect, tasks, temperature=0.0, seed=3, resamples=10)
    self.assertEqual([job.task.task_id for job in seen],
                     [task.task_id for task in tasks])
    self.assertLen({job.seed for job in seen}, 5)
    again = list(seen)
    evaluate.evaluate(collect, tasks, temperature=1.0, seed=3, resamples=10)
    # Two evaluations judge on the same draws, whatever the temperature.
    self.assertEqual([j.seed for j in seen[5:]], [j.seed for j in again])


if __name__ == '__main__':
  absltest.main()
