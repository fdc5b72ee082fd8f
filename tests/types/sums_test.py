"""L8, L9, G15: sums with their counts."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.types import sums


class SumsTest(parameterized.TestCase):

  def test_L8_sums_are_added_and_means_are_not(self):
    # 6 over 2 and 1 over 3: 7/5, where the mean of means would be 5/3.
    whole = sums.TokenSum(6.0, 2.0) + sums.TokenSum(1.0, 3.0)
    self.assertEqual((whole.total, whole.count), (7.0, 5.0))
    self.assertAlmostEqual(float(whole.mean), 1.4, places=6)

  def test_L8_a_sum_under_weights_is_divided_by_their_sum(self):
    self.assertEqual(float(sums.TokenSum(1.0, 0.25).mean), 4.0)

  def test_L9_nothing_counted_has_the_mean_0(self):
    nothing = sums.TokenSum(jnp.float32(0.0), jnp.float32(0.0))
    self.assertEqual(float(nothing.mean), 0.0)
    # A sum that belongs to no token says nothing either.
    self.assertEqual(float(sums.TokenSum(3.0, 0.0).mean), 0.0)
    whole = nothing + sums.TokenSum(3.0, 2.0)
    self.assertEqual(float(whole.mean), 1.5)

  def test_L9_an_empty_sum_has_no_gradient(self):
    slope = jax.grad(lambda x: sums.TokenSum(x * 0.0, x * 0.0).mean)(2.0)
    self.assertEqual(float(slope), 0.0)

  def test_masked_sum_by_hand(self):
    found = sums.masked_sum(
        jnp.asarray([[1.0, 2.0], [4.0, 8.0]]),
        jnp.asarray([[True, False], [True, True]]),
    )
    self.assertEqual((float(found.total), float(found.count)), (13.0, 3.0))

  @parameterized.parameters(1e30, np.inf, -np.inf, np.nan)
  def test_G15_what_is_masked_reaches_neither_sum_nor_gradient(self, junk):
    mask = jnp.asarray([True, False])
    total = lambda x: sums.masked_sum(x, mask).total
    value, slope = jax.value_and_grad(total)(jnp.asarray([3.0, junk]))
    self.assertEqual(float(value), 3.0)
    np.testing.assert_array_equal(slope, [1.0, 0.0])

  @parameterized.parameters(1e30, np.inf, -np.inf, np.nan)
  def test_L9_G15_what_weighs_nothing_reaches_neither_sum_nor_gradient(
      self, junk
  ):
    weight = jnp.asarray([0.5, 0.0])
    total = lambda x: sums.weighted_sum(x, weight)
    value, slope = jax.value_and_grad(total)(jnp.asarray([3.0, junk]))
    self.assertEqual(float(value), 1.5)
    np.testing.assert_array_equal(slope, [0.5, 0.0])

  def test_flags_and_small_floats_are_summed_in_float32(self):
    # 4097 ones: bfloat16 would stop at 256, a bool sum at 1.
    for dtype in (bool, jnp.bfloat16):
      found = sums.masked_sum(jnp.ones(4097, dtype), jnp.ones(4097, bool))
      self.assertEqual(found.total.dtype, jnp.float32)
      self.assertEqual(float(found.total), 4097.0)
      self.assertEqual(float(found.count), 4097.0)

  def test_it_is_a_tree_that_jit_returns(self):
    found = jax.jit(sums.masked_sum)(jnp.ones(3), jnp.ones(3, bool))
    self.assertIsInstance(found, sums.TokenSum)
    doubled = jax.tree.map(lambda x: 2 * x, found)
    self.assertEqual(float(doubled.mean), 1.0)


if __name__ == '__main__':
  absltest.main()
