"""What free slots still hold."""

from absl.testing import absltest
import numpy as np

from rl_tpu.sampler import residents as residents_lib


def _ids(*ids: int) -> np.ndarray:
  return np.array(ids, np.int32)


class ResidentsTest(absltest.TestCase):

  def test_takes_the_longest_that_is_continued_once(self):
    made = residents_lib.Residents(4)
    made.put(0, _ids(1))
    made.put(1, _ids(1, 2, 3))
    made.put(2, _ids(1, 2, 9))
    made.put(3, _ids(1, 2, 3, 4, 5))
    self.assertEqual(made.take(_ids(1, 2, 3, 4)), (1, 3))
    self.assertEqual(made.take(_ids(1, 2, 3, 4)), (0, 1))
    self.assertEqual(made.take(_ids(1, 2, 3, 4)), (-1, 0))

  def test_the_same_sequence_is_not_a_continuation(self):
    made = residents_lib.Residents(1)
    made.put(0, _ids(1, 2))
    self.assertEqual(made.take(_ids(1, 2)), (-1, 0))
    self.assertEqual(made.take(_ids(1, 2, 3)), (0, 2))

  def test_one_id_is_not_the_start_of_a_larger_one(self):
    made = residents_lib.Residents(1)
    made.put(0, _ids(1))
    # 257 begins with the byte of 1.
    self.assertEqual(made.take(_ids(257, 5)), (-1, 0))

  def test_forgets_a_slot_all_or_the_long_ones(self):
    made = residents_lib.Residents(3)
    for slot in range(3):
      made.put(slot, np.full(slot + 2, slot, np.int32))
    self.assertEqual(made.last_use, [1, 2, 3])
    made.forget(0)
    made.forget_all(from_length=4)
    self.assertEqual(made.last_use, [0, 2, 0])
    self.assertEqual(made.take(_ids(2, 2, 2, 2, 2)), (-1, 0))
    made.forget_all()
    self.assertEqual(made.take(_ids(1, 1, 1, 1)), (-1, 0))

  def test_two_slots_with_one_sequence(self):
    made = residents_lib.Residents(2)
    made.put(0, _ids(1, 2))
    made.put(1, _ids(1, 2))
    self.assertEqual(made.take(_ids(1, 2, 3)), (0, 2))
    made.put(1, _ids(5))
    self.assertEqual(made.take(_ids(5, 6)), (1, 1))


if __name__ == '__main__':
  absltest.main()
