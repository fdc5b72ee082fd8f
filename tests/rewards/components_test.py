"""D2, G6, R9, K35: weighted sums of reward components."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.rewards import components

PLACES = {
    'tool_valid': [(0, 2, 1.0), (1, 0, 1.0)],
    'sub_answer': [(0, 2, 0.5), (0, 2, -2.0)],
}
LENGTHS = {0: 3, 1: 2}


class PositionTest(parameterized.TestCase):

  def test_D2_R9_weighted_sum_at_every_position(self):
    # (0, 2): .1 * 1 + 2 * (.5 - 2) = -2.9; (1, 0): .1.
    found = components.position_rewards(
        PLACES, {'tool_valid': 0.1, 'sub_answer': 2.0}, LENGTHS
    )
    self.assertEqual(list(found), [0, 1])
    np.testing.assert_allclose(found[0], [0.0, 0.0, -2.9], rtol=1e-12)
    np.testing.assert_allclose(found[1], [0.1, 0.0], rtol=1e-12)
    self.assertEqual(found[0].dtype, np.float64)

  def test_D2_a_component_without_a_weight_counts_0(self):
    found = components.position_rewards(PLACES, {'tool_valid': 1.0}, LENGTHS)
    np.testing.assert_array_equal(found[0], [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(found[1], [1.0, 0.0])

  def test_D2_weight_0_keeps_a_number_that_is_none_out(self):
    places = {'broken': [(0, 1, float('nan')), (0, 0, float('inf'))]}
    found = components.position_rewards(places, {'broken': 0.0}, {0: 2})
    np.testing.assert_array_equal(found[0], [0.0, 0.0])

  def test_K35_a_weighted_nan_shows(self):
    places = {'broken': [(0, 1, float('nan'))]}
    found = components.position_rewards(places, {'broken': 1.0}, {0: 2})
    np.testing.assert_array_equal(np.isnan(found[0]), [False, True])

  def test_R9_terminal_is_in_no_position(self):
    places = {'terminal': [(0, 1, 5.0)], 'tool_valid': [(0, 0, 1.0)]}
    found = components.position_rewards(
        places, {'terminal': 1.0, 'tool_valid': 1.0}, {0: 2}
    )
    np.testing.assert_array_equal(found[0], [1.0, 0.0])

  def test_no_component_is_no_reward(self):
    found = components.position_rewards({}, {'terminal': 1.0}, LENGTHS)
    np.testing.assert_array_equal(found[0], np.zeros(3))
    np.testing.assert_array_equal(found[1], np.zeros(2))

  @parameterized.parameters((2, 0), (0, 3), (0, -1))
  def test_R9_a_place_that_does_not_exist_is_refused(self, segment, position):
    # Also with weight 0: the record is at fault, whatever it counts.
    for weight in (0.0, 1.0):
      with self.assertRaisesRegex(
          ValueError, f"'tool_valid'.*segment {segment}, position {position}"
      ):
        components.position_rewards(
            {'tool_valid': [(segment, position, 1.0)]},
            {'tool_valid': weight},
            LENGTHS,
        )


class TerminalTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.5, {'terminal': 2.0}, 1.0),
      (0.5, {'terminal': 0.0}, 0.0),
      (-1.0, {'terminal': 0.25}, -0.25),
      # A mapping that only speaks of other components weighs it 1.
      (0.5, {}, 0.5),
      (0.5, {'tool_valid': 0.1}, 0.5),
      # A bootstrapped end has no score in use (T2).
      (None, {'terminal': 2.0}, 0.0),
      # Weight 0 keeps out what is not a number.
      (float('nan'), {'terminal': 0.0}, 0.0),
  )
  def test_G6_weight_of_the_score(self, raw, weights, expected):
    self.assertEqual(components.terminal_reward(raw, weights), expected)


class RawTest(absltest.TestCase):

  def test_D2_raw_sums_know_no_weights(self):
    self.assertEqual(
        components.raw_sums({**PLACES, 'unused': []}),
        {'tool_valid': 2.0, 'sub_answer': -1.5, 'unused': 0.0},
    )


if __name__ == '__main__':
  absltest.main()
