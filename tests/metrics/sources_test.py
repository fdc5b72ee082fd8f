"""D1, D4, G18: what each task source brings to a batch."""

import numpy as np
from absl.testing import absltest

from rl_tpu.metrics import sources
from rl_tpu.metrics import tags


class SourcesTest(absltest.TestCase):

  def test_D1_D4_G18_counts_and_scales(self):
    found = sources.figures(
        sources.Columns(
            sources=('code', 'math', 'none'),
            rollout_source=np.asarray([0, 1, 1]),
            tokens=np.asarray([5, 7, 11]),
            raw_return=np.asarray([4.0, 0.0, 2.0]),
            normalised=np.asarray([4.0, 0.0, 1.0]),
            token_source=np.asarray([0, 0, 1]),
            raw_advantage=np.asarray([2.0, -4.0, 3.0]),
            advantage=np.asarray([1.0, -2.0, 3.0]),
        )
    )
    self.assertEqual(found['rollout/source_rollouts/code'], 1)
    self.assertEqual(found['rollout/source_rollouts/math'], 2)
    self.assertEqual(found['rollout/source_tokens/math'], 18)
    # Raw, normalised and advantage are told apart (D1).
    self.assertEqual(found['reward/mean/math'], 1.0)
    self.assertEqual(found['reward/std/math'], 1.0)
    self.assertEqual(found['reward/normalised_mean/math'], 0.5)
    self.assertEqual(found['reward/normalised_max/math'], 1.0)
    self.assertEqual(found['adv/source_mean/code'], -1.0)
    self.assertEqual(found['adv/source_min/code'], -4.0)
    self.assertEqual(found['adv/source_normalised_mean/code'], -0.5)
    # A source without rollouts in the batch shows as 0, not as nothing.
    self.assertEqual(found['rollout/source_rollouts/none'], 0)
    self.assertNotIn('reward/mean/none', found)
    self.assertEqual(tags.unknown(found), [])


if __name__ == '__main__':
  absltest.main()
