"""Counting built programs."""

from absl.testing import absltest
import jax
import numpy as np

from rl_tpu.sharding import compile_count


class CompileCountTest(absltest.TestCase):

  def test_a_new_shape_counts_and_a_known_one_does_not(self):
    double = jax.jit(lambda x: x * 2)
    three, four = np.ones(3, np.float32), np.ones(4, np.float32)
    with compile_count.count_compilations() as counter:
      double(three)
      self.assertEqual(counter.count, 1)
      double(three)
      self.assertEqual(counter.count, 1)
      double(four)
      self.assertEqual(counter.count, 2)
    self.assertLen(counter.names, 2)
    self.assertGreater(counter.seconds, 0.0)
    double(np.ones(5, np.float32))
    self.assertEqual(counter.count, 2)

  def test_counters_do_not_disturb_each_other(self):
    triple = jax.jit(lambda x: x * 3)
    with compile_count.CompileCounter() as outer:
      triple(np.ones(3, np.float32))
      with compile_count.CompileCounter() as inner:
        triple(np.ones(4, np.float32))
      triple(np.ones(5, np.float32))
    self.assertEqual((outer.count, inner.count), (3, 1))


if __name__ == '__main__':
  absltest.main()
