"""D1: rewards of different sources on one scale."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.rewards import scaling


def scales(**settings) -> scaling.Scales:
  return scaling.Scales(schema.RewardConfig(**settings))


class AffineTest(absltest.TestCase):

  def test_D1_constants_of_the_verifier(self):
    found = scales(
        norm='affine',
        affine_scale={'judge': 4.0},
        affine_shift={'judge': 2.0, 'other': 1.0},
    )
    # (8 - 2) / 4, and (8 - 1) / 1.
    self.assertEqual(found.of('any', 'judge').score(8.0), 1.5)
    self.assertEqual(found.of('any', 'other').score(8.0), 7.0)
    self.assertEqual(found.of('any', 'unknown'), scaling.Scale())

  def test_D1_other_constants_are_another_scale(self):
    ids = {
        scales(norm='affine', affine_scale={'v': s}, affine_shift={'v': m})
        .of('any', 'v')
        .scale_id
        for s, m in ((1.0, 0.0), (2.0, 0.0), (1.0, 1.0))
    }
    self.assertLen(ids, 3)

  def test_D1_constants_that_nobody_uses_are_refused(self):
    config = schema.RewardConfig(norm='affine', affine_scale={'judge': 4.0})
    scaling.check_verifier(config, 'judge')
    with self.assertRaisesRegex(ValueError, "affine_scale.*'exact'.*name it"):
      scaling.check_verifier(config, 'exact')
    config = schema.RewardConfig(
        norm='affine', affine_scale={'judge': 4.0}, affine_shift={'old': 1.0}
    )
    with self.assertRaisesRegex(ValueError, 'affine_scale.old.*remove it'):
      scaling.check_verifier(config, 'judge')
    scaling.check_verifier(schema.RewardConfig(), 'judge')


class RunningTest(parameterized.TestCase):

  def test_D1_a_batch_is_scaled_by_the_batches_before_it(self):
    found = scales(norm='running')
    # Nothing before the first batch.
    self.assertEqual(found.of('a', 'v'), scaling.Scale())
    found.record(['a', 'b', 'a'], [0.0, 5.0, 4.0])
    # Mean 2, population deviation 2; no shift.
    self.assertEqual(found.of('a', 'v'), scaling.Scale(0.0, 2.0))
    # One return has no spread, and c was never seen.
    self.assertEqual(found.of('b', 'v'), scaling.Scale())
    self.assertEqual(found.of('c', 'v'), scaling.Scale())

  def test_D1_batches_add_up_to_one_statistic(self):
    found = scales(norm='running')
    found.record(['a', 'a'], [0.0, 4.0])
    found.record(['a', 'a'], [0.0, 0.0])
    # 0, 4, 0, 0: mean 1, squares 1 + 9 + 1 + 1 = 12, deviation sqrt(3).
    self.assertAlmostEqual(found.of('a', 'v').divisor, 3**0.5)

  @parameterized.parameters([[100.3] * 7], [[0.1 + 0.2, 0.3]], [[1e-7, 0.0]])
  def test_D1_G15_returns_without_spread_do_not_divide(self, returns):
    found = scales(norm='running')
    found.record(['a'] * len(returns), returns)
    self.assertEqual(found.of('a', 'v'), scaling.Scale())

  def test_D1_a_return_that_is_no_number_is_not_taken_in(self):
    found = scales(norm='running')
    found.record(['a', 'a'], [0.0, 4.0])
    found.record(['a'], [float('nan')])
    self.assertEqual(found.of('a', 'v').divisor, 2.0)

  def test_D1_O7_the_statistics_survive_a_checkpoint(self):
    found = scales(norm='running')
    found.record(['a', 'a'], [0.0, 4.0])
    again = scales(norm='running')
    again.restore(json.loads(json.dumps(found.state())))
    self.assertEqual(again.of('a', 'v'), found.of('a', 'v'))
    found.record(['a'], [7.0])
    again.record(['a'], [7.0])
    self.assertEqual(again.of('a', 'v'), found.of('a', 'v'))

  def test_D1_none_scales_nothing(self):
    found = scales(norm='none')
    found.record(['a', 'a'], [0.0, 4.0])
    self.assertEqual(found.of('a', 'v'), scaling.Scale())


if __name__ == '__main__':
  absltest.main()
