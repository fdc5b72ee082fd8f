"""D4, D7, K25, K26: which tasks a batch draws."""

import collections
import json

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.tasks import cursor
from rl_tpu.tasks import draws
from rl_tpu.tasks import success as success_lib


def task(name: str, source='a') -> records.Task:
  return records.Task(name, source, 'f', 0, {})


class Tasks(list):
  """A task source with easier variants of some tasks."""

  def easier(self, made):
    hard = made.task_id.startswith('hard')
    return task(f'easy-{made.task_id}') if hard else None


def ids(found) -> list[str]:
  return [draw.task.task_id for draw in found]


def by_source(found) -> dict[str, int]:
  return dict(collections.Counter(draw.task.source for draw in found))


class PlainTest(absltest.TestCase):

  def test_K26_without_a_mix_the_order_is_the_cursors(self):
    source = [task(f't{i}') for i in range(10)]
    plain = cursor.TaskCursor(source, seed=3)
    found = draws.TaskDraws(source, seed=3)
    self.assertEqual(
        ids(found.take(7) + found.take(9)),
        [t.task_id for t in plain.take(16)],
    )
    self.assertEqual(found.count, 16)


class MixTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.source = [
        task(f't{i}', 'rare' if i % 10 == 0 else 'common') for i in range(100)
    ]

  def drawn(self, mix, **settings):
    return draws.TaskDraws(
        self.source, seed=0, data=schema.DataConfig(mix=mix), **settings
    )

  def test_D4_a_batch_has_the_shares_of_the_mix_and_not_of_the_data(self):
    found = self.drawn({'rare': 3.0, 'common': 1.0})
    for _ in range(5):
      self.assertEqual(by_source(found.take(8)), {'rare': 6, 'common': 2})

  @parameterized.parameters(1, 3, 7)
  def test_D4_shares_hold_over_batches_of_any_size(self, size):
    found = self.drawn({'rare': 0.3, 'common': 0.7})
    taken = [d for _ in range(10) for d in found.take(size)]
    self.assertEqual(by_source(taken), {'rare': 3 * size, 'common': 7 * size})

  def test_D4_no_task_of_a_source_comes_twice_in_its_epoch(self):
    taken = ids(self.drawn({'rare': 1.0, 'common': 1.0}).take(20))
    self.assertLen(set(taken), 20)

  def test_D4_weight_0_leaves_a_source_out(self):
    found = self.drawn({'rare': 0.0, 'common': 1.0}).take(30)
    self.assertEqual(by_source(found), {'common': 30})

  def test_K26_a_resumed_mix_goes_on_where_it_was(self):
    mix = {'rare': 0.4, 'common': 0.6}
    whole = self.drawn(mix)
    first, rest = ids(whole.take(7)), ids(whole.take(40))
    half = self.drawn(mix)
    self.assertEqual(ids(half.take(7)), first)
    again = self.drawn(mix)
    again.restore(json.loads(json.dumps(half.state())))
    self.assertEqual(ids(again.take(40)), rest)
    self.assertEqual(again.count, 47)

  def test_D4_a_declared_index_saves_reading_every_task(self):

    class Declared(list):

      def indices_by_source(self):
        return {'rare': [0, 10], 'common': [1, 2, 3]}

    found = draws.TaskDraws(
        Declared(self.source),
        seed=0,
        shuffle=False,
        data=schema.DataConfig(mix={'rare': 1.0, 'common': 1.0}),
    )
    self.assertEqual(ids(found.take(6)), ['t1', 't0', 't2', 't10', 't3', 't0'])

  def test_D4_a_mix_that_does_not_fit_the_tasks_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'data.mix.other.*common, rare'):
      self.drawn({'rare': 1.0, 'common': 1.0, 'other': 1.0})
    with self.assertRaisesRegex(ValueError, "data.mix.*'common' has no weight"):
      self.drawn({'rare': 1.0})

  def test_K26_a_saved_place_of_another_mix_is_refused(self):
    state = self.drawn({'rare': 1.0, 'common': 1.0}).state()
    with self.assertRaisesRegex(ValueError, 'data.mix'):
      self.drawn({'rare': 0.0, 'common': 1.0}).restore(state)


class CurriculumTest(parameterized.TestCase):

  def success(self, **rates) -> success_lib.TaskSuccess:
    found = success_lib.TaskSuccess()
    for name, outcomes in rates.items():
      found.record([(name, outcome == '1') for outcome in outcomes])
    return found

  def drawn(self, source, success, **settings):
    data = schema.DataConfig(curriculum='success', **settings)
    return draws.TaskDraws(
        source, seed=1, shuffle=False, data=data, success=success
    )

  @parameterized.parameters(
      ('', 'unknown', 1.0),
      ('111', 'unknown', 1.0),
      ('1111', 'solved', 0.2),
      ('0000', 'unsolved', 1.0),
      ('1101', 'mixed', 1.0),
  )
  def test_D7_weights_by_running_success(self, outcomes, standing, weight):
    found = self.drawn(Tasks([task('t')]), self.success(t=outcomes))
    self.assertEqual(found.weight('t'), (standing, weight))

  def test_D7_the_floor_keeps_every_task_measured(self):
    found = self.drawn(
        Tasks([task('t')]), self.success(t='1111'), easy_weight=0.0
    )
    self.assertEqual(found.weight('t'), ('solved', 0.05))
    self.assertEqual(ids(found.take(2)), ['t', 't'])
    self.assertGreater(found.passed_over, 0)

  def test_D7_solved_tasks_come_less_often(self):
    source = Tasks([task('easy'), task('open')])
    found = self.drawn(source, self.success(easy='1111', open='10'))
    taken = collections.Counter(ids(found.take(1200)))
    # One of the two weighs 0.2: 200 and 1000, deviation about 13.
    self.assertBetween(taken['easy'], 140, 260)

  def test_D7_unsolved_tasks_are_replaced_at_the_rate_by_easier_ones(self):
    source = Tasks([task('hard')])
    found = self.drawn(source, self.success(hard='0000'), easier_rate=0.25)
    taken = found.take(400)
    replaced = [d for d in taken if d.replaced]
    # Binomial(400, 0.25): deviation about 9.
    self.assertBetween(len(replaced), 60, 140)
    self.assertEqual({d.task.task_id for d in replaced}, {'easy-hard'})
    self.assertEqual({d.standing for d in taken}, {'unsolved'})

  def test_D7_a_task_without_a_variant_stays(self):
    found = self.drawn(
        Tasks([task('t')]), self.success(t='0000'), easier_rate=1.0
    )
    (draw,) = found.take(1)
    self.assertEqual((draw.task.task_id, draw.replaced), ('t', False))

  def test_D7_success_is_that_before_the_draw(self):
    known = self.success()
    found = self.drawn(Tasks([task('hard')]), known, easier_rate=1.0)
    self.assertEqual(ids(found.take(1)), ['hard'])
    known.record([('hard', False)] * 4)
    self.assertEqual(ids(found.take(1)), ['easy-hard'])

  def test_D7_K26_a_resumed_curriculum_draws_the_same(self):
    source = Tasks([task(f't{i}') for i in range(6)] + [task('hard')])
    rates = {'t0': '1111', 't1': '1111', 'hard': '0000'}
    whole = self.drawn(source, self.success(**rates))
    first, rest = ids(whole.take(5)), ids(whole.take(60))
    half = self.drawn(source, self.success(**rates))
    self.assertEqual(ids(half.take(5)), first)
    again = self.drawn(source, self.success(**rates))
    again.restore(json.loads(json.dumps(half.state())))
    self.assertEqual(ids(again.take(60)), rest)

  def test_D7_a_source_without_variants_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'data.easier_rate=0.5.*=0'):
      self.drawn([task('t')], self.success())
    self.drawn([task('t')], self.success(), easier_rate=0.0)

  def test_D4_D7_a_mix_keeps_its_shares_under_a_curriculum(self):
    source = Tasks(
        [task('easy', 'a'), task('other', 'a')]
        + [task(f'b{i}', 'b') for i in range(4)]
    )
    found = self.drawn(
        source, self.success(easy='1111'), mix={'a': 1.0, 'b': 1.0}
    )
    self.assertEqual(by_source(found.take(40)), {'a': 20, 'b': 20})


if __name__ == '__main__':
  absltest.main()
