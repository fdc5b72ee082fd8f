"""The shape check that array code starts with."""

import jax
import numpy as np
from absl.testing import absltest

from rl_tpu.types import shapes


class ShapesTest(absltest.TestCase):

  def test_sizes_of_the_letters(self):
    self.assertEqual(
        shapes.check_shapes(
            reward_BT=np.zeros((2, 3)), ending_B=np.zeros(2), logits_BTV=None
        ),
        {'B': 2, 'T': 3},
    )

  def test_one_letter_is_one_size(self):
    with self.assertRaisesRegex(
        ValueError, 'value_BT has T=4, but reward_BT has T=3'
    ):
      shapes.check_shapes(
          reward_BT=np.zeros((2, 3)), value_BT=np.zeros((2, 4))
      )

  def test_one_letter_is_one_size_within_an_array(self):
    with self.assertRaisesRegex(ValueError, 'mask_TT has T=4'):
      shapes.check_shapes(mask_TT=np.zeros((3, 4)))

  def test_rank_is_the_number_of_letters(self):
    with self.assertRaisesRegex(ValueError, r'\(2, 3, 1\).*2 dimensions'):
      shapes.check_shapes(reward_BT=np.zeros((2, 3, 1)))

  def test_a_letter_that_does_not_exist(self):
    with self.assertRaisesRegex(ValueError, "reward_BX.*'X'"):
      shapes.check_shapes(reward_BX=np.zeros((2, 3)))

  def test_letters_are_those_after_the_last_underscore(self):
    self.assertEqual(
        shapes.check_shapes(behaviour_logp_BT=np.zeros((5, 6))),
        {'B': 5, 'T': 6},
    )

  def test_it_works_under_jit_without_a_trace_of_its_own(self):
    @jax.jit
    def add(left_T, right_T):
      shapes.check_shapes(left_T=left_T, right_T=right_T)
      return left_T + right_T

    np.testing.assert_array_equal(add(np.ones(2), np.ones(2)), [2.0, 2.0])
    with self.assertRaisesRegex(ValueError, 'right_T has T=3'):
      add(np.ones(2), np.ones(3))


if __name__ == '__main__':
  absltest.main()
