"""C7's warning, C12, C13: what looks wrong without an error."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.metrics import alarms

QUIET = {'first': 0.2, 'last': 0.3}


class TrendTest(parameterized.TestCase):

  @parameterized.parameters(
      ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1),
      ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], -1),
      ([1.0, 1.0, 1.0, 1.0], 0),
      ([1.0, 1.0, 2.0, 2.0], 1),
      # Halves 1 9 and 2 10: means 5 and 6, far within their errors.
      ([1.0, 9.0, 2.0, 10.0], 0),
      # The change is below 1e-6 of the largest number (G15).
      ([1e6, 1e6, 1e6 + 0.5, 1e6 + 0.5], 0),
      ([1.0, 2.0, None, 4.0, 5.0, 6.0], 0),
      ([1.0, 2.0, float('nan'), 4.0, 5.0, 6.0], 0),
      ([1.0, 2.0, 3.0], 0),
  )
  def test_C13_trend(self, values, expected):
    self.assertEqual(alarms.trend(values), expected)

  def test_C13_the_error_of_the_halves_decides(self):
    # Halves 0 2 0 2 and 3 5 3 5: variance (ddof 1) 4/3 each, so the error
    # of the difference is sqrt((4/3 + 4/3) / 4) = 0.816; 3 is above twice it.
    self.assertEqual(alarms.trend([0, 2, 0, 2, 3, 5, 3, 5]), 1)
    # A difference of 1.5 is below 1.633.
    self.assertEqual(alarms.trend([0, 2, 0, 2, 1.5, 3.5, 1.5, 3.5]), 0)

  def test_C13_noise_seldom_has_a_trend(self):
    rng = np.random.default_rng(0)
    found = [alarms.trend(rng.normal(size=20).tolist()) for _ in range(2000)]
    # Two-sided 5 % of a normal; a little more for eighteen degrees of freedom.
    self.assertBetween(np.mean(np.abs(found)), 0.03, 0.09)


class OneSidedTest(absltest.TestCase):

  def test_C13_shares_of_the_positive_mass(self):
    # Positive: 1 in the first tenth, 4 in the middle, 5 in the last.
    found = alarms.one_sided(
        np.asarray([1.0, -7.0, 4.0, 5.0, -1.0]), np.asarray([0, 0, 4, 9, 9])
    )
    self.assertEqual(found, (0.1, 0.5))

  def test_C13_no_positive_advantage_has_no_side(self):
    self.assertEqual(
        alarms.one_sided(np.asarray([-1.0, 0.0]), np.asarray([0, 9])),
        (None, None),
    )
    self.assertEqual(
        alarms.one_sided(np.zeros(0), np.zeros(0, int)), (None, None)
    )


class SameReturnsTest(absltest.TestCase):

  def test_C12_equal_returns(self):
    self.assertTrue(alarms.same_returns(np.ones(4)))
    # Seven times 100.3 in float32: a deviation of rounding (G15).
    self.assertTrue(alarms.same_returns(np.full(7, 100.3, np.float32)))
    self.assertFalse(alarms.same_returns(np.asarray([1.0, 1.0, 0.99])))
    self.assertFalse(alarms.same_returns(np.zeros(0)))


class WatchTest(absltest.TestCase):

  def feed(self, watch, loss, returns, held_out, **sides) -> list[list[str]]:
    return [
        [
            a.name
            for a in watch.record(
                value_loss=a_loss, raw_return=a_return, held_out_mse=an_error,
                **{**QUIET, **sides},
            )
        ]
        for a_loss, a_return, an_error in zip(loss, returns, held_out)
    ]

  def setUp(self):
    super().setUp()
    self.falls = np.linspace(2.0, 1.0, 10).tolist()
    self.flat = [0.5] * 10
    self.rises = np.linspace(1.0, 2.0, 10).tolist()

  def watch(self) -> alarms.Watch:
    return alarms.Watch(schema.AlarmConfig(window=10))

  def test_C13_value_loss_and_return_fall_together(self):
    found = self.feed(self.watch(), self.falls, self.falls, self.flat)
    # Not before the window is full.
    self.assertEqual(found[:9], [[]] * 9)
    self.assertEqual(found[9], ['return_falls'])

  def test_C13_the_message_names_the_four_things_to_check(self):
    watch = self.watch()
    self.feed(watch, self.falls[:9], self.falls[:9], self.flat[:9])
    (alarm,) = watch.record(
        value_loss=1.0, raw_return=1.0, held_out_mse=0.5, **QUIET
    )
    for word in ('sign', 'ends', 'bootstrap', 'scale'):
      self.assertIn(word, alarm.message)

  def test_C13_a_rising_return_is_no_alarm(self):
    found = self.feed(self.watch(), self.falls, self.rises, self.flat)
    self.assertEqual(found, [[]] * 10)
    found = self.feed(self.watch(), self.rises, self.falls, self.flat)
    self.assertEqual(found, [[]] * 10)

  def test_C13_a_frozen_actor_has_no_trend(self):
    returns = [None] * 3 + self.falls[3:]
    found = self.feed(self.watch(), self.falls, returns, self.flat)
    self.assertEqual(found, [[]] * 10)

  def test_C7_held_out_error_rises_while_the_loss_falls(self):
    found = self.feed(self.watch(), self.falls, self.flat, self.rises)
    self.assertEqual(found[9], ['held_out_rises'])
    found = self.feed(self.watch(), self.rises, self.flat, self.rises)
    self.assertEqual(found, [[]] * 10)

  def test_C13_one_sided_advantages(self):
    watch = alarms.Watch(schema.AlarmConfig(one_sided=0.8))
    quiet = {'value_loss': 1.0, 'raw_return': 1.0, 'held_out_mse': None}
    names = lambda first, last: [
        a.name for a in watch.record(**quiet, first=first, last=last)
    ]
    self.assertEqual(names(0.1, 0.81), ['one_sided_last'])
    self.assertEqual(names(0.81, 0.1), ['one_sided_first'])
    self.assertEqual(names(0.8, 0.2), [])
    self.assertEqual(names(None, None), [])

  def test_O7_windows_go_on_after_a_resume(self):
    watch = self.watch()
    self.feed(watch, self.falls[:9], self.falls[:9], self.flat[:9])
    again = self.watch()
    again.restore(watch.state())
    found = self.feed(again, self.falls[9:], self.falls[9:], self.flat[9:])
    self.assertEqual(found, [['return_falls']])


if __name__ == '__main__':
  absltest.main()
