"""G15, D1, O7: statistics of numbers that come in batches."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.types import statistics

NOTHING = statistics.Statistics(
    count=0, mean=0.0, squared_deviation=0.0, raw=0
)


class MeasureTest(absltest.TestCase):

  def test_by_hand(self):
    # Mean 3; deviations -2, -1 and 3.
    found = statistics.measure(np.asarray([1.0, 2.0, 6.0]))
    self.assertEqual(found, statistics.Statistics(3, 3.0, 14.0))
    self.assertAlmostEqual(found.std, math.sqrt(14.0 / 3.0))

  def test_G15_two_passes_keep_a_small_spread(self):
    # In one pass 1e16 would be taken from 1e16.
    found = statistics.measure(1e8 + np.asarray([-1.0, 1.0] * 50))
    self.assertEqual(found, statistics.Statistics(100, 1e8, 100.0))

  def test_nothing_has_mean_and_spread_0(self):
    self.assertEqual(statistics.measure(np.zeros(0)), NOTHING)
    self.assertEqual(statistics.Statistics(), NOTHING)
    self.assertEqual(NOTHING.std, 0.0)


class MergeTest(parameterized.TestCase):

  def test_D1_two_batches_are_as_one(self):
    # 1, 2, 6 and 11: mean 5; deviations -4, -3, 1 and 6.
    merged = statistics.merge(
        statistics.Statistics(3, 3.0, 14.0, raw=2),
        statistics.Statistics(1, 11.0, 0.0, raw=5),
    )
    self.assertEqual((merged.count, merged.mean, merged.raw), (4, 5.0, 7))
    self.assertAlmostEqual(merged.squared_deviation, 62.0)

  def test_D1_nothing_adds_nothing(self):
    some = statistics.Statistics(3, 3.0, 14.0)
    self.assertEqual(statistics.merge(some, NOTHING), some)
    self.assertEqual(statistics.merge(NOTHING, some), some)

  @parameterized.parameters(math.nan, math.inf)
  def test_L18_what_is_not_finite_is_not_taken_in(self, value):
    some = statistics.Statistics(3, 3.0, 14.0)
    for later in (
        statistics.Statistics(1, value, 0.0),
        statistics.Statistics(1, 1.0, value),
    ):
      self.assertEqual(statistics.merge(some, later), some)

  def test_O7_state_and_back(self):
    running = {'a': statistics.Statistics(3, 3.0, 14.0, 1), 'b': NOTHING}
    state = statistics.state(running)
    self.assertEqual(
        state['a'],
        {'count': 3, 'mean': 3.0, 'squared_deviation': 14.0, 'raw': 1},
    )
    self.assertEqual(statistics.from_state(state), running)


class FloorTest(parameterized.TestCase):

  @parameterized.parameters(
      # std, values, floor: against max(1, the largest of |x|).
      (0.1, [0.5, -0.2], 0.1, True),
      (0.11, [0.5, -0.2], 0.1, False),
      (0.4, [1.0, -4.0], 0.1, True),
      (0.41, [1.0, -4.0], 0.1, False),
      (0.0, [], 0.0, True),
  )
  def test_G15_the_floor_grows_with_the_numbers(
      self, std, values, floor, expected
  ):
    found = statistics.is_degenerate(std, np.asarray(values), floor=floor)
    self.assertIs(found, expected)


if __name__ == '__main__':
  absltest.main()
