"""O1: version gaps, waits, and distance to the sampler."""

import numpy as np
from absl.testing import absltest

from rl_tpu.metrics import age_figures
from rl_tpu.metrics import tags


class AgeFiguresTest(absltest.TestCase):

  def test_O1_gap_of_tokens_and_of_the_oldest(self):
    # Rollout 0: gaps 0 0 4; rollout 1: gaps 2 2 2 2.
    found = age_figures.figures(
        age_figures.Ages(
            gap=np.asarray([0, 0, 4, 2, 2, 2, 2]),
            rollout=np.asarray([0, 0, 0, 1, 1, 1, 1]),
            oldest=np.asarray([4, 2]),
            waited=np.asarray([1.0, 5.0]),
            length=np.asarray([2, 4]),
        )
    )
    self.assertAlmostEqual(found['policy/version_gap_mean'], 12 / 7)
    self.assertEqual(found['policy/version_gap_max'], 4.0)
    self.assertEqual(found['policy/version_gap_oldest_mean'], 3.0)
    self.assertEqual(found['rollout/queue_wait_mean'], 3.0)
    self.assertEqual(found['rollout/queue_wait_max'], 5.0)
    by_length = lambda name, bucket: found[f'slice/{name}_by_length/{bucket}']
    self.assertAlmostEqual(by_length('policy_version_gap_mean', 2), 4 / 3)
    self.assertEqual(by_length('policy_version_gap_mean', 4), 2.0)
    self.assertEqual(by_length('policy_version_gap_oldest_mean', 2), 4.0)
    self.assertEqual(by_length('rollout_queue_wait_max', 4), 5.0)
    self.assertEqual(tags.unknown(found), [])

  def test_O1_length_buckets_begin_at_powers_of_two(self):
    found = age_figures.length_bucket([0, 1, 2, 3, 4, 7, 8, 1023, 1024])
    self.assertEqual(found.tolist(), [0, 1, 2, 2, 4, 4, 8, 512, 1024])

  def test_O1_distance_to_the_sampler(self):
    # x = log 2 and log 0.5: w = 2, 0.5.
    x = np.log([2.0, 0.5])
    found = age_figures.importance(x)
    self.assertAlmostEqual(found['policy/kl_behaviour_k1'], 0.0)
    # (2 - 1 - log 2 + 0.5 - 1 + log 2) / 2 = 0.25.
    self.assertAlmostEqual(found['policy/kl_behaviour_k3'], 0.25)
    # (2 + 0.5)^2 / (2 * (4 + 0.25)) = 6.25 / 8.5.
    self.assertAlmostEqual(found['policy/ess_behaviour'], 6.25 / 8.5)
    self.assertEqual(age_figures.importance(np.zeros(0)), {})

  def test_O1_equal_weights_are_a_whole_sample(self):
    found = age_figures.importance(np.full(5, 0.3))
    self.assertAlmostEqual(found['policy/ess_behaviour'], 1.0)
    self.assertAlmostEqual(found['policy/kl_behaviour_k1'], -0.3)

  def test_O1_extreme_ratios_stay_finite(self):
    found = age_figures.importance(np.asarray([-800.0, 800.0]))
    self.assertTrue(np.isfinite(list(found.values())).all())

  def test_O1_distance_by_length(self):
    found = age_figures.importance_by_length(
        np.asarray([0.5, 0.5, -0.25]), np.asarray([8, 8, 16])
    )
    name = 'slice/policy_kl_behaviour_k1_by_length'
    self.assertEqual(found[f'{name}/8'], -0.5)
    self.assertEqual(found[f'{name}/16'], 0.25)
    self.assertEqual(tags.unknown(found), [])


if __name__ == '__main__':
  absltest.main()
