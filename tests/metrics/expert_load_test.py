"""Evenness of experts' loads, by hand."""

from absl.testing import absltest
import numpy as np

from rl_tpu.metrics import expert_load
from rl_tpu.metrics import tags


class ExpertLoadTest(absltest.TestCase):

  def test_shares_and_variation(self):
    # Shares .5 .25 .125 .125 and .25 four times. Of the first, around .25:
    # variance (.0625 + 0 + 2 x .015625) / 4 = .0234375, deviation .153093,
    # over the mean .612372. The second has none.
    found = expert_load.figures(np.array([[4, 2, 1, 1], [2, 2, 2, 2]]))
    expected = {
        'policy/expert_busiest': 0.5,
        'policy/expert_idlest': 0.125,
        'policy/expert_variation': 0.306186,
        'policy/expert_variation_max': 0.612372,
    }
    self.assertEqual(found.keys(), expected.keys())
    for name, value in expected.items():
      self.assertAlmostEqual(found[name], value, places=6)
    self.assertEqual(tags.unknown(found), [])

  def test_no_token(self):
    self.assertEqual(expert_load.figures(np.zeros((2, 4))), {})


if __name__ == '__main__':
  absltest.main()
