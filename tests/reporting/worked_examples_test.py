"""The printed examples are those of the golden file."""

import numpy as np
from absl.testing import absltest

from rl_tpu.reporting import worked_examples
from tests import golden_io


class WorkedExamplesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.expected = {
        name: case['expected'] for name, case in golden_io.named('seed_worked')
    }

  def test_G11_G12_three_actions(self):
    for decay, wanted in self.expected['gae-3step'].items():
      np.testing.assert_allclose(
          worked_examples.three_steps(float(decay)), wanted['advantage']
      )

  def test_L1_ratios_and_their_product(self):
    single, product = worked_examples.ratios()
    wanted = self.expected['ratios']
    np.testing.assert_allclose(single, wanted['token_ratio'], rtol=1e-6)
    np.testing.assert_allclose(product, wanted['sequence_ratio'], rtol=1e-6)

  def test_E3_E4_group(self):
    found = worked_examples.group()
    wanted = self.expected['grpo-0011']
    names = {'GRPO': 'grpo', 'Dr.GRPO': 'dr_grpo', 'RLOO': 'rloo'}
    for name, key in names.items():
      np.testing.assert_allclose(found[name], wanted[key])

  def test_G9_cut_residuals(self):
    wanted = self.expected['compaction-residual']
    np.testing.assert_allclose(
        worked_examples.cut_residuals(),
        [wanted['residual_continue'], wanted['residual_terminal']],
    )

  def test_L8_aggregation(self):
    wanted = self.expected['aggregation-2-vs-2.5']
    for mode in ('task_mean', 'token', 'rollout_mean'):
      self.assertAlmostEqual(
          worked_examples.aggregated(mode), wanted[mode], places=6
      )

  def test_E8_the_table_shows_percentages(self):
    rows = worked_examples.rows()
    results = [result for _, ids, result in rows if ids == 'E8']
    self.assertEqual(
        results, [f'{p}%' for p in self.expected['p-mix']['percent_1dp']]
    )


if __name__ == '__main__':
  absltest.main()
