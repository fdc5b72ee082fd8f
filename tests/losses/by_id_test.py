"""L8, L9, L20: sums by dense id, and what stands in padding."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from rl_tpu.losses import by_id
from rl_tpu.types import batch as batch_lib

# Segments 0 and 1 are rollout 0, segment 2 is rollout 1, the last is padding.
ORIGIN = batch_lib.Origin(
    rollout_N=jnp.asarray([0, 0, 1, -1]), task_R=jnp.asarray([0, 0, -1])
)


class SumTest(absltest.TestCase):

  def test_L8_L9_masked_tokens_and_padding_are_in_no_segment(self):
    value_BT = jnp.asarray([[1.0, 2.0, np.nan], [4.0, 8.0, 16.0]])
    mask_BT = jnp.asarray([[True, True, False], [True, True, True]])
    segment_BT = jnp.asarray([[0, 2, 2], [2, 1, -1]])
    total = lambda value_BT: by_id.segment_sum(
        value_BT, mask_BT, segment_BT, size=4
    )
    np.testing.assert_array_equal(total(value_BT), [1.0, 8.0, 6.0, 0.0])
    slope_BT = jax.grad(lambda x: jnp.sum(total(x)))(value_BT)
    np.testing.assert_array_equal(slope_BT, [[1, 1, 0], [1, 1, 0]])

  def test_L8_sums_of_rollouts_leave_the_padding_out(self):
    found = by_id.rollout_sum(jnp.asarray([1.0, 2.0, 4.0, 8.0]), ORIGIN)
    np.testing.assert_array_equal(found, [3.0, 4.0, 0.0])


class SpreadTest(absltest.TestCase):

  def test_L20_a_rollouts_entry_at_its_segments(self):
    found = by_id.at_segments(jnp.asarray([5.0, 7.0, 9.0]), ORIGIN)
    np.testing.assert_array_equal(found, [5.0, 5.0, 7.0, 0.0])

  def test_L20_a_segments_entry_at_its_tokens(self):
    found = by_id.at_tokens(
        jnp.asarray([5.0, 7.0]), jnp.asarray([[1, 1, 0], [0, -1, -1]])
    )
    np.testing.assert_array_equal(found, [[7, 7, 5], [5, 0, 0]])

  def test_L9_a_mean_of_nothing_is_0_and_has_no_gradient(self):
    count = jnp.asarray([2.0, 1.0, 0.0])
    total = lambda x: jnp.sum(by_id.mean(x, count))
    value = jnp.asarray([3.0, 3.0, 0.0])
    np.testing.assert_array_equal(by_id.mean(value, count), [1.5, 3.0, 0.0])
    np.testing.assert_array_equal(jax.grad(total)(value), [0.5, 1.0, 0.0])


if __name__ == '__main__':
  absltest.main()
