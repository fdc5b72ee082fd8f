"""Arithmetic tasks and the traps of their generators."""

import re
import time

import reasoning_gym
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import calculator
from rl_tpu.tasks import arithmetic
from rl_tpu.tasks import splits


def expressions(tasks) -> set[str]:
  return {p['expression'] for t in tasks for p in t.payload['problems']}


class ArithmeticTasksTest(parameterized.TestCase):

  def test_a_task_is_what_the_environment_needs(self):
    task = arithmetic.ArithmeticTasks('train', count=5)[3]
    self.assertLen(task.payload['problems'], 3)
    self.assertLen(expressions([task]), 3)
    for problem in task.payload['problems']:
      self.assertEqual(
          set(problem), {'generator', 'expression', 'answer', 'entry'}
      )
      self.assertIn(problem['generator'], ('chain_sum', 'basic_arithmetic'))

  def test_trap_precedence_answers_are_what_a_calculator_says(self):
    for split in splits.SPLITS:
      for problem in arithmetic.problem_pool(split):
        value = calculator.calculate(problem['expression'])
        self.assertEqual(str(value), problem['answer'], problem)

  def test_trap_precedence_the_generator_does_disagree(self):
    # Worked by hand: 42 - 35 * 73 = 42 - 2555 = -2513; the generator's own
    # answer would be (42 - 35) * 73 = 511.
    self.assertEqual(arithmetic.value_of('42 - 35 * 73'), -2513)
    self.assertFalse(arithmetic.is_usable('42 - 35 * 73', '511'))
    self.assertTrue(arithmetic.is_usable('42 - 5 * 7', '7'))

  @parameterized.parameters(
      ('1 + 2 + 3 + 4', '10'),
      ('100 + 1', '101'),
      ('2 - 99 * 99', '-9799'),
  )
  def test_long_problems_are_left_out(self, expression, answer):
    self.assertFalse(arithmetic.is_usable(expression, answer))

  def test_pools_are_large_and_hold_both_generators(self):
    train = arithmetic.problem_pool('train')
    held_out = arithmetic.problem_pool('eval')
    self.assertGreater(len(train), 10_000)
    share = len(held_out) / (len(train) + len(held_out))
    self.assertBetween(share, 0.08, 0.12)
    for pool in (train, held_out):
      share = sum(p['generator'] == 'chain_sum' for p in pool) / len(pool)
      self.assertBetween(share, 0.25, 0.75)

  def test_trap_split_is_disjoint_by_content(self):
    pools = [
        {p['expression'].replace(' ', '') for p in arithmetic.problem_pool(s)}
        for s in splits.SPLITS
    ]
    self.assertEmpty(pools[0] & pools[1])

  def test_trap_split_whatever_the_seed(self):
    train = arithmetic.ArithmeticTasks('train', count=2000, seed=1)
    held_out = arithmetic.ArithmeticTasks('eval', count=500, seed=2)
    self.assertEmpty(expressions(train) & expressions(held_out))

  def test_trap_seeds_in_a_row_share_no_task(self):
    # reasoning-gym's own lists of seed 1 and 2 are one list, shifted.
    shifted = [
        [
            item['metadata']['expression']
            for item in reasoning_gym.create_dataset(
                'chain_sum', size=50, seed=seed
            )
        ]
        for seed in (1, 2)
    ]
    self.assertEqual(shifted[0][1:], shifted[1][:-1])
    ids = [
        {t.task_id for t in arithmetic.ArithmeticTasks(count=2000, seed=seed)}
        for seed in (0, 1, 2)
    ]
    self.assertLen(ids[0] | ids[1] | ids[2], 6000)

  def test_items_do_not_depend_on_the_count_or_on_order(self):
    short = arithmetic.ArithmeticTasks(count=10, seed=4)
    long = arithmetic.ArithmeticTasks(count=100, seed=4)
    self.assertEqual(list(short), [long[i] for i in range(10)])
    self.assertEqual(long[9], short[9])
    self.assertEqual(short[-1], short[9])
    with self.assertRaises(IndexError):
      short[10]  # pylint: disable=pointless-statement

  def test_D7_an_easier_variant_is_shorter_and_of_the_same_split(self):
    source = arithmetic.ArithmeticTasks('train', count=200, problems=2)
    held_out = {p['expression'] for p in arithmetic.problem_pool('eval')}
    replaced = 0
    for made in source:
      easier = source.easier(made)
      if easier is None:
        terms = [
            len(re.findall(r'[0-9]+', p['expression']))
            for p in made.payload['problems']
        ]
        self.assertEqual(terms, [2, 2])
        continue
      replaced += 1
      self.assertEqual(easier, source.easier(made))
      self.assertNotEqual(easier.task_id, made.task_id)
      found = [p['expression'] for p in easier.payload['problems']]
      self.assertLen(set(found), 2)
      self.assertEmpty(set(found) & held_out)
      for expression in found:
        self.assertLen(re.findall(r'[0-9]+', expression), 2)
      # Nothing is easier than that.
      self.assertIsNone(source.easier(easier))
    self.assertGreater(replaced, 50)

  def test_building_is_fast(self):
    arithmetic.problem_pool.cache_clear()
    arithmetic._all_problems.cache_clear()
    start = time.process_time()
    arithmetic.ArithmeticTasks('train')
    self.assertLess(time.process_time() - start, 5.0)

  @parameterized.parameters(
      ({'split': 'test'}, 'test'),
      ({'count': 0}, 'tasks.settings.count = 0'),
      ({'problems': 0}, 'tasks.settings.problems = 0'),
  )
  def test_settings_are_checked(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      arithmetic.ArithmeticTasks(**settings)


if __name__ == '__main__':
  absltest.main()
