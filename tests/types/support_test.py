"""Ragged sampling supports."""

import numpy as np
from absl.testing import absltest

from rl_tpu.types import support


class SupportTest(absltest.TestCase):

  def test_R5_padded_form_and_back(self):
    ragged = support.Support(
        np.array([2, 0, -1, 1], np.int32), np.array([7, 8, 5], np.int32)
    )
    wanted = [[7, 8, -1], [-1, -1, -1], [-1, -1, -1], [5, -1, -1]]
    np.testing.assert_array_equal(support.padded(ragged, 3), wanted)
    back = support.from_columns(ragged.count, np.array(wanted))
    np.testing.assert_array_equal(back.ids, ragged.ids)

  def test_R5_parts_are_joined_in_order(self):
    first = support.Support(np.array([1], np.int32), np.array([4], np.int32))
    joined = support.join([first, support.whole(2), first])
    np.testing.assert_array_equal(joined.count, [1, 0, 0, 1])
    np.testing.assert_array_equal(joined.ids, [4, 4])

  def test_R5_a_larger_support_is_refused(self):
    large = support.Support(np.array([2], np.int32), np.array([4, 5], np.int32))
    with self.assertRaisesRegex(ValueError, 'sampling.max_support = 1'):
      support.padded(large, 1)


if __name__ == '__main__':
  absltest.main()
