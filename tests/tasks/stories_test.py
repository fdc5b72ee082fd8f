"""Nouns of the story tasks: two families without a noun in common."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.tasks import stories


def named(tasks) -> set[str]:
  return {task.payload['noun'] for task in tasks}


class NounTasksTest(parameterized.TestCase):

  def test_no_noun_is_in_both_families_or_named_twice(self):
    both = (*stories.TRAINED, *stories.HELD_OUT)
    self.assertLen(set(both), len(both))
    self.assertEqual(stories.nouns('trained'), stories.TRAINED)
    self.assertEqual(stories.nouns('held_out'), stories.HELD_OUT)
    with self.assertRaisesRegex(ValueError, "family = 'all'"):
      stories.nouns('all')

  def test_an_article_fits_every_noun(self):
    for noun in (*stories.TRAINED, *stories.HELD_OUT):
      self.assertRegex(noun, '^[b-df-hj-np-tv-z][a-z]+$')

  @parameterized.parameters(
      ('train', 'held_out', 'trained'),
      ('train', 'trained', 'trained'),
      ('eval', 'held_out', 'held_out'),
      ('eval', 'trained', 'trained'),
  )
  def test_a_split_has_the_nouns_of_its_family(self, split, evaluated, family):
    tasks = stories.NounTasks(split, evaluated=evaluated, repeats=2)
    self.assertEqual(named(tasks), set(stories.nouns(family)))
    self.assertEqual({task.family for task in tasks}, {family})
    self.assertLen(tasks, 2 * len(stories.nouns(family)))
    self.assertEqual(
        tasks.indices_by_source(), {'stories': range(len(tasks))}
    )

  def test_a_task_is_what_the_environment_needs(self):
    tasks = stories.NounTasks('train', repeats=2)
    self.assertEqual(
        tasks[0].payload, {'noun': 'ball', 'line': 'Tim looked for a ball.'}
    )

  def test_the_repeats_of_a_noun_are_tasks_of_their_own(self):
    tasks = stories.NounTasks('eval', repeats=3)
    self.assertLen({task.task_id for task in tasks}, len(tasks))
    count = len(tasks) // 3
    self.assertEqual(tasks[0].payload, tasks[count].payload)
    self.assertNotEqual(tasks[0].seed, tasks[count].seed)
    self.assertEqual(tasks[-1], tasks[len(tasks) - 1])
    with self.assertRaises(IndexError):
      _ = tasks[len(tasks)]

  @parameterized.parameters(
      ({'split': 'test'}, "split = 'test'"),
      ({'evaluated': 'all'}, "tasks.settings.evaluated = 'all'"),
      ({'repeats': 0}, 'tasks.settings.repeats = 0'),
  )
  def test_bad_settings_are_refused(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      stories.NounTasks(**settings)


if __name__ == '__main__':
  absltest.main()
