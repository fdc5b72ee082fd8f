"""E8, E9, D1, D4, D7, D8: the rollouts of one update."""

import dataclasses
import json

import numpy as np
from absl.testing import absltest

from rl_tpu.advantages import groups
from rl_tpu.assembly import gathering
from rl_tpu.config import schema
from rl_tpu.metrics import tags
from rl_tpu.records import records
from rl_tpu.rollout import ledger
from rl_tpu.rollout import replacement
from tests import group_cases

Turn = group_cases.Turn


class Tasks(list):

  def easier(self, made):
    return dataclasses.replace(made, task_id=f'easy-{made.task_id}')


def tasks(count, *, source='s') -> Tasks:
  return Tasks(
      records.Task(f't{i}', source, f'f{i % 2}', i, {}) for i in range(count)
  )


def experiment(**changes) -> schema.ExperimentConfig:
  base = schema.ExperimentConfig(
      'test',
      tasks=schema.TasksConfig(shuffle=False),
      batching=schema.BatchingConfig(
          tasks_per_batch=3, row_length=64, rows_per_microbatch=2
      ),
      reward=schema.RewardConfig(weights=group_cases.WEIGHTS),
      advantage=schema.AdvantageConfig(estimator='grpo'),
      group=schema.GroupConfig(size=2, dynamic_sampling=True, max_rounds=2),
  )
  return dataclasses.replace(base, **changes)


class Runs:
  """Runs jobs by a table: scores of the members, by task id."""

  def __init__(self, scores, **fields):
    self._scores = scores
    self._fields = fields
    self.jobs = []

  def __call__(self, jobs):
    self.jobs += jobs
    return [self._run(job) for job in jobs]

  def _run(self, job):
    place = int(job.rollout_id.split('-')[1])
    score = self._scores.get(job.task.task_id, [1.0, 0.0])[place]
    return group_cases.member(
        job.rollout_id,
        [Turn(3)],
        score,
        task_id=job.task.task_id,
        task_family=job.task.family,
        source=job.task.source,
        group_id=job.group_id,
        solved=score is not None and score >= 1.0,
        counters={'tool_calls': 2.0},
        **self._fields,
    )


def gathered(config, runs, source=None, **options):
  """One batch: the gathering, all rollouts, and their judgement."""
  made = gathering.Gathering(config, source or tasks(20), **options)
  rollouts, admitted = made.admit(runs(made.jobs()), runs, current_version=0)
  return made, rollouts, admitted


def figures(made, admitted):
  batch = group_cases.build(admitted)
  array_BT = groups.advantages(
      batch,
      schema.AdvantageConfig(estimator='grpo'),
      schema.GroupConfig(size=2),
  )
  return batch, made.figures(admitted, batch, array_BT, array_BT)


class DynamicSamplingTest(absltest.TestCase):

  def test_E9_flat_groups_are_replaced_and_their_cost_is_counted(self):
    # t1 and t2 are flat; t3 comes in mixed, t4 flat, and t5 for it.
    runs = Runs({'t1': [0.0, 0.0], 't2': [1.0, 1.0], 't4': [0.0, 0.0]})
    made, rollouts, admitted = gathered(experiment(), runs)
    self.assertEqual(
        [m.rollout.task_id for m in admitted.admitted],
        ['t0', 't0', 't3', 't3', 't5', 't5'],
    )
    self.assertLen(rollouts, 12)
    self.assertEqual(
        {d.rollout.task_id for d in admitted.discards}, {'t1', 't2', 't4'}
    )
    self.assertEqual(
        {d.detail for d in admitted.discards}, {replacement.DETAIL}
    )
    _, values = figures(made, admitted)
    expected = {
        'replaced': 3, 'rounds': 2, 'extra_rollouts': 6, 'left_flat': 0,
        # Three sampled tokens and two tool calls in each.
        'extra_tokens': 18, 'extra_tool_calls': 12,
    }
    for name, want in expected.items():
      self.assertEqual(values[f'group/{name}'], want, name)
    # What was sampled first: t0 half, t1 nothing, t2 all.
    self.assertEqual(values['group/success_sampled'], 0.5)
    self.assertEqual(tags.unknown(values), [])

  def test_E9_the_rounds_are_bounded_and_the_batch_stays_full(self):
    runs = Runs({f't{i}': [0.0, 0.0] for i in range(20)})
    made, rollouts, admitted = gathered(experiment(), runs)
    self.assertLen(rollouts, 18)
    self.assertLen(admitted.admitted, 6)
    _, values = figures(made, admitted)
    self.assertEqual(values['group/replaced'], 6)
    self.assertEqual(values['group/left_flat'], 3)

  def test_E9_A5_every_rollout_is_accounted_for(self):
    runs = Runs({'t0': [0.0, 0.0], 't1': [None, 1.0]})
    _, rollouts, admitted = gathered(experiment(), runs)
    books = ledger.Ledger()
    books.start(len(rollouts))
    books.end(len(rollouts))
    books.record(admitted)
    books.assert_balanced()

  def test_E9_off_by_default(self):
    config = experiment(group=schema.GroupConfig(size=2))
    runs = Runs({'t0': [0.0, 0.0]})
    made, rollouts, admitted = gathered(config, runs)
    self.assertLen(rollouts, 6)
    self.assertLen(admitted.admitted, 6)
    _, values = figures(made, admitted)
    self.assertNotIn('group/replaced', values)

  def test_E9_fresh_tasks_have_ids_and_seeds_of_their_own(self):
    runs = Runs({'t1': [0.0, 0.0]})
    made, _, _ = gathered(experiment(), runs)
    made.admit(runs(made.jobs()), runs, current_version=0)
    ids = [job.rollout_id for job in runs.jobs]
    self.assertLen(set(ids), len(ids))
    self.assertLen({job.seed for job in runs.jobs}, len(ids))
    # No task of the source was skipped or drawn twice.
    drawn = list(dict.fromkeys(job.task.task_id for job in runs.jobs))
    self.assertEqual(drawn, [f't{i}' for i in range(7)])


class KnownBeforeTest(absltest.TestCase):

  def test_E8_the_success_of_earlier_batches_and_not_of_this_one(self):
    config = experiment(group=schema.GroupConfig(size=2))
    runs = Runs({'t0': [1.0, 1.0]})
    made, _, admitted = gathered(config, runs, tasks(3))
    batch, values = figures(made, admitted)
    self.assertIsNone(values['group/p_mix'])
    self.assertEqual(values['group/p_mix_known'], 0.0)
    made.take_in(admitted, batch)
    _, admitted = made.admit(runs(made.jobs()), runs, current_version=0)
    batch, values = figures(made, admitted)
    # t0 was solved twice: 0; the others once in two: 1/2 each.
    self.assertAlmostEqual(values['group/p_mix'], 1 / 3)
    self.assertEqual(values['group/p_mix_known'], 1.0)
    self.assertEqual(values['group/effective_size'], 2.0)
    # Families f0 (t0, t2) and f1 (t1).
    self.assertEqual(values['group/family/f0/all_one'], 0.5)
    self.assertEqual(values['group/family/f1/all_one'], 0.0)

  def test_E9_D7_replaced_groups_are_outcomes_too(self):
    runs = Runs({'t1': [0.0, 0.0]})
    made, _, admitted = gathered(experiment(), runs)
    made.take_in(admitted, group_cases.build(admitted))
    self.assertEqual(made.success.rate('t1'), 0.0)
    self.assertEqual(made.success.rate('t0'), 0.5)

  def test_D1_returns_of_a_batch_scale_the_next_one(self):
    config = experiment(
        reward=schema.RewardConfig(weights=group_cases.WEIGHTS, norm='running'),
        group=schema.GroupConfig(size=2),
    )
    runs = Runs({f't{i}': [4.0, 0.0] for i in range(20)})
    made, _, admitted = gathered(config, runs)
    batch = group_cases.build(admitted)
    np.testing.assert_array_equal(batch.return_R, [4.0, 0.0] * 3)
    made.take_in(admitted, batch)
    _, admitted = made.admit(runs(made.jobs()), runs, current_version=0)
    batch, values = figures(made, admitted)
    # Mean 2, population deviation 2.
    np.testing.assert_array_equal(batch.return_R, [2.0, 0.0] * 3)
    np.testing.assert_array_equal(batch.raw_return_R, [4.0, 0.0] * 3)
    self.assertEqual(values['reward/max/s'], 4.0)
    self.assertEqual(values['reward/normalised_max/s'], 2.0)
    made.take_in(admitted, batch)
    # The statistics are of raw returns: scaling does not feed on itself.
    self.assertEqual(made.scales.of('s', 'golden').divisor, 2.0)

  def test_O7_what_is_kept_survives_a_checkpoint(self):
    config = experiment(
        reward=schema.RewardConfig(weights=group_cases.WEIGHTS, norm='running')
    )
    runs = Runs({'t1': [0.0, 0.0]}, )
    made, _, admitted = gathered(config, runs)
    made.take_in(admitted, group_cases.build(admitted))
    saved = json.loads(json.dumps([made.draws.state(), made.state()]))
    again = gathering.Gathering(config, tasks(20))
    again.draws.restore(saved[0])
    again.restore(saved[1])
    self.assertEqual(again.state(), made.state())
    self.assertEqual(
        [j.rollout_id for j in again.jobs()],
        [j.rollout_id for j in made.jobs()],
    )


class SourcesTest(absltest.TestCase):

  def test_D4_a_mix_reaches_the_batch(self):
    source = Tasks(tasks(9) + [
        dataclasses.replace(t, task_id=f'u{i}', source='u')
        for i, t in enumerate(tasks(3))
    ])
    config = experiment(
        data=schema.DataConfig(mix={'s': 1.0, 'u': 2.0}),
        group=schema.GroupConfig(size=2),
    )
    made, _, admitted = gathered(config, Runs({}), source)
    _, values = figures(made, admitted)
    self.assertEqual(values['rollout/source_rollouts/s'], 2)
    self.assertEqual(values['rollout/source_rollouts/u'], 4)

  def test_D7_A6_success_over_the_task_set_as_it_is(self):
    config = experiment(
        batching=schema.BatchingConfig(
            tasks_per_batch=2, row_length=64, rows_per_microbatch=2
        ),
        data=schema.DataConfig(
            curriculum='success', easy_weight=1.0, easier_rate=1.0
        ),
        group=schema.GroupConfig(size=2),
    )
    runs = Runs({'t0': [1.0, 1.0], 't1': [1.0, 0.0]})
    made = gathering.Gathering(config, tasks(3))
    # t0 is always solved, t2 never.
    made.success.record([('t0', True)] * 4 + [('t2', False)] * 4)
    _, admitted = made.admit(runs(made.jobs()), runs, current_version=0)
    _, values = figures(made, admitted)
    self.assertEqual(values['rollout/task_standing/solved'], 0.5)
    self.assertEqual(values['reward/success_unweighted'], 0.75)
    self.assertEqual(values['rollout/task_weight'], 1.0)
    self.assertEqual(tags.unknown(values), [])
    # Of t2 an easier variant is run; it is not of the task set.
    _, admitted = made.admit(runs(made.jobs()), runs, current_version=0)
    self.assertEqual(
        [m.rollout.task_id for m in admitted.admitted],
        ['easy-t2'] * 2 + ['t0'] * 2,
    )
    _, values = figures(made, admitted)
    self.assertEqual(values['rollout/easier_variants'], 0.5)
    self.assertEqual(values['reward/success_unweighted'], 1.0)

  def test_D7_a_task_drawn_rarely_counts_for_those_that_were_not(self):
    config = experiment(
        batching=schema.BatchingConfig(
            tasks_per_batch=2, row_length=64, rows_per_microbatch=2
        ),
        data=schema.DataConfig(
            curriculum='success', easy_weight=0.5, easier_rate=0.0
        ),
        group=schema.GroupConfig(size=2),
    )
    runs = Runs({'t0': [1.0, 1.0], 't1': [0.0, 0.0]})
    made = gathering.Gathering(config, tasks(2))
    made.success.record([('t0', True)] * 4)
    while True:
      jobs = made.jobs()
      if {j.task.task_id for j in jobs} == {'t0', 't1'}:
        break
    _, admitted = made.admit(runs(jobs), runs, current_version=0)
    _, values = figures(made, admitted)
    # t0 weighs 1 / 0.5, t1 weighs 1: 2 / 3 solved.
    self.assertAlmostEqual(values['reward/success_unweighted'], 2 / 3)


class NoiseTest(absltest.TestCase):

  def test_D8_a_deterministic_verifier_that_differs_stops_the_run(self):
    runs = Runs({}, )
    differing = {'verifier_rescored': 1.0, 'verifier_disagreed': 1.0}

    def collect(jobs):
      made = runs(jobs)
      return [dataclasses.replace(made[0], counters=differing), *made[1:]]

    with self.assertRaisesRegex(RuntimeError, '0000000-0.*differently'):
      gathered(experiment(), collect, deterministic_verifier=True)
    made, _, admitted = gathered(experiment(), collect)
    _, values = figures(made, admitted)
    self.assertEqual(values['reward/verifier_disagreed'], 1.0)


if __name__ == '__main__':
  absltest.main()
