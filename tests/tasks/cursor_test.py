"""The place in the tasks, over epochs and restarts."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.records import records
from rl_tpu.tasks import cursor


def rows(count: int, prefix: str = 'row') -> list[records.Task]:
  """Tasks that only have an id."""
  return [
      records.Task(f'{prefix}-{i}', 's', 'f', i, {}) for i in range(count)
  ]


def seeds(tasks) -> list[int]:
  return [t.seed for t in tasks]


def restarted(place: cursor.TaskCursor, **settings) -> cursor.TaskCursor:
  """A new cursor that read the state back from JSON text."""
  fresh = cursor.TaskCursor(rows(10), **settings)
  fresh.restore(json.loads(json.dumps(place.state())))
  return fresh


class TaskCursorTest(parameterized.TestCase):

  def test_K26_plain_over_three_runs(self):
    settings = {'seed': 0, 'shuffle': False}
    run = cursor.TaskCursor(rows(10), **settings)
    self.assertEqual(seeds(run.take(3)), [0, 1, 2])
    run = restarted(run, **settings)
    self.assertEqual(seeds(run.take(2)), [3, 4])
    run = restarted(run, **settings)
    self.assertEqual(seeds(run.take(2)), [5, 6])
    self.assertEqual(run.next_index, 7)

  @parameterized.parameters(0, 1, 2)
  def test_K26_shuffled_is_the_uninterrupted_order(self, seed):
    settings = {'seed': seed, 'shuffle': True}
    whole = seeds(cursor.TaskCursor(rows(10), **settings).take(40))
    run = cursor.TaskCursor(rows(10), **settings)
    seen = seeds(run.take(3))
    for count in (2, 2, 6, 1, 13, 13):
      run = restarted(run, **settings)
      seen += seeds(run.take(count))
    self.assertEqual(seen, whole)
    # Every epoch holds every row once, in an order of its own.
    epochs = [whole[i : i + 10] for i in range(0, 40, 10)]
    for epoch in epochs:
      self.assertEqual(sorted(epoch), list(range(10)))
    self.assertGreater(len({tuple(epoch) for epoch in epochs}), 1)

  def test_K26_looking_ahead_does_not_move_the_place(self):
    run = cursor.TaskCursor(rows(10), seed=0, shuffle=True)
    ahead = seeds(run.peek(7))
    state = run.state()
    self.assertEqual(seeds(run.take(7)), ahead)
    self.assertEqual(state['next_index'], 0)

  @parameterized.parameters((4, 4), (3, 5), (8, 0))
  def test_K25_resume_at_the_end_of_an_epoch(self, saved_at, left):
    # Two tasks per step, four steps per epoch, two epochs: eight steps.
    settings = {'seed': 5, 'shuffle': True}
    whole = cursor.TaskCursor(rows(8), **settings)
    steps = [seeds(whole.take(2)) for _ in range(8)]
    run = cursor.TaskCursor(rows(8), **settings)
    for _ in range(saved_at):
      run.take(2)
    resumed = cursor.TaskCursor(rows(8), **settings)
    resumed.restore(run.state())
    self.assertEqual(resumed.epoch, saved_at // 4)
    rest = [seeds(resumed.take(2)) for _ in range(left)]
    self.assertEqual(rest, steps[saved_at:])

  def test_a_batch_may_cross_the_end_of_an_epoch(self):
    run = cursor.TaskCursor(rows(3), seed=0, shuffle=False)
    self.assertEqual(seeds(run.take(7)), [0, 1, 2, 0, 1, 2, 0])
    self.assertEqual(run.epoch, 2)

  def test_seeds_give_different_orders(self):
    orders = {
        tuple(seeds(cursor.TaskCursor(rows(10), seed=s).take(10)))
        for s in range(5)
    }
    self.assertGreater(len(orders), 3)

  @parameterized.parameters(
      (rows(9), {'seed': 0}, 'length 10 became 9'),
      (rows(10, 'other'), {'seed': 0}, 'content'),
      (rows(10), {'seed': 1}, 'seed 0 became 1'),
      (rows(10), {'seed': 0, 'shuffle': False}, 'shuffle True became False'),
  )
  def test_K26_another_data_set_is_refused(self, source, settings, message):
    run = cursor.TaskCursor(rows(10), seed=0)
    run.take(3)
    other = cursor.TaskCursor(source, **settings)
    with self.assertRaisesRegex(ValueError, message):
      other.restore(run.state())
    self.assertEqual(other.next_index, 0)

  def test_an_empty_source_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'no tasks'):
      cursor.TaskCursor([], seed=0)


if __name__ == '__main__':
  absltest.main()
