"""Trainer and sampler score the same tokens."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.alignment import score
from tests.models import cases


class ScoreTest(parameterized.TestCase):

  @parameterized.parameters('qwen2', 'qwen3', 'llama3')
  def test_O4_both_paths_equal_a_plain_loop(self, name):
    config = cases.config(**cases.VARIANTS[name])
    params = cases.params(config)
    ids = cases.ids(2, 21)
    found = score.score(params, config, ids)
    plain = cases.log_softmax(cases.plain_logits(params, config, ids))
    expected = [plain[p - 1, ids[p]] for p in range(1, 21)]
    np.testing.assert_allclose(found['trainer'], expected, atol=3e-5)
    np.testing.assert_allclose(found['sampler'], expected, atol=3e-5)
    self.assertLess(found['max_abs_diff'], 1e-4)

  def test_max_abs_diff_is_the_distance_of_the_lists(self):
    config = cases.config()
    found = score.score(cases.params(config), config, cases.ids(1, 9))
    self.assertLen(found['trainer'], 8)
    self.assertLen(found['sampler'], 8)
    gaps = [abs(x - y) for x, y in zip(found['trainer'], found['sampler'])]
    self.assertAlmostEqual(found['max_abs_diff'], max(gaps), places=7)

  def test_K14_both_divide_by_the_temperature(self):
    config = cases.config(vocab_size=3)
    params = cases.flat_params(config, [2.0, 1.0, 0.0])
    found = score.score(params, config, [1, 0, 0], temperature=0.5)
    for name in ('trainer', 'sampler'):
      np.testing.assert_allclose(found[name], [-0.1429316285] * 2, atol=1e-5)

  def test_K22_neither_gives_probability_to_rows_without_a_token(self):
    config = cases.config(vocab_size=8, usable_vocab=6)
    params = cases.flat_params(config, [0.0] * 8)
    found = score.score(params, config, [0, 1, 2, 3, 4, 5])
    for name in ('trainer', 'sampler'):
      np.testing.assert_allclose(found[name], [-math.log(6.0)] * 5, atol=1e-6)

  def test_two_ids_are_the_least(self):
    config = cases.config()
    params = cases.params(config)
    self.assertLen(score.score(params, config, [3, 4])['sampler'], 1)
    with self.assertRaisesRegex(ValueError, 'at least two'):
      score.score(params, config, [3])


if __name__ == '__main__':
  absltest.main()
