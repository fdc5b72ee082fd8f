"""E8, D7: running success of a task."""

import json

from absl.testing import absltest

from rl_tpu.tasks import success


class TaskSuccessTest(absltest.TestCase):

  def test_E8_an_unseen_task_has_no_rate(self):
    found = success.TaskSuccess()
    self.assertIsNone(found.rate('a'))
    found.record([('a', True), ('a', False), ('b', True)])
    self.assertEqual(found.rate('a'), 0.5)
    self.assertEqual(found.rate('b'), 1.0)
    self.assertIsNone(found.rate('c'))

  def test_D7_a_rate_may_need_more_outcomes(self):
    found = success.TaskSuccess()
    found.record([('a', True), ('a', True)])
    self.assertIsNone(found.rate('a', at_least=3))
    found.record([('a', True)])
    self.assertEqual(found.rate('a', at_least=3), 1.0)

  def test_D7_old_outcomes_are_forgotten(self):
    found = success.TaskSuccess(window=2)
    found.record([('a', False), ('a', False), ('a', True)])
    self.assertEqual(found.rate('a'), 0.5)
    found.record([('a', True)])
    self.assertEqual(found.rate('a'), 1.0)

  def test_O7_survives_a_checkpoint(self):
    found = success.TaskSuccess(window=2)
    found.record([('a', False), ('a', True)])
    again = success.TaskSuccess(window=2)
    again.restore(json.loads(json.dumps(found.state())))
    again.record([('a', True)])
    self.assertEqual(again.rate('a'), 1.0)
    self.assertEqual(found.rate('a'), 0.5)

  def test_a_window_without_room_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'data.success_window=0'):
      success.TaskSuccess(window=0)


if __name__ == '__main__':
  absltest.main()
