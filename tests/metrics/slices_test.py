"""C2, C4: errors, advantages and values by what they depend on."""

import numpy as np
from absl.testing import absltest

from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import slices
from rl_tpu.metrics import tags


def table(**changes) -> diagnostics.CriticTable:
  """Two rollouts of two sources: four actions and two."""
  columns = {
      'value': [0.5, 0.5, 0.75, 1.0, 0.25, 0.0],
      'target': [1.0, 1.0, 1.0, 1.0, 0.0, 0.5],
      'rollout': ['a', 'a', 'a', 'a', 'b', 'b'],
      'action_index': [0, 1, 2, 3, 0, 1],
      'length': [4, 4, 4, 4, 2, 2],
      'bootstrapped': [False] * 4 + [True] * 2,
      'termination': ['success'] * 4 + ['budget_truncation'] * 2,
      'source': ['sums'] * 4 + ['words'] * 2,
      'family': ['f'] * 4 + ['g'] * 2,
      'advantage': [0.5, 0.5, 0.25, 0.0, -0.25, 0.5],
      'delta': [0.0, 0.25, 0.25, 0.0, -0.75, 0.5],
      'gap': [0, 0, 3, 3, 3, 40],
      'at_cut': [False, True, False, False, True, False],
      **changes,
  }
  return diagnostics.CriticTable(
      **{
          name: None if column is None else np.asarray(column)
          for name, column in columns.items()
      }
  )


class SlicesTest(absltest.TestCase):

  def test_C4_by_source_family_and_kind_of_end(self):
    found = slices.figures(table())
    # sums: errors -0.5 -0.5 -0.25 0; words: 0.25 -0.5.
    for division, (left, right) in {
        'source': ('sums', 'words'),
        'family': ('f', 'g'),
        'end': ('success', 'budget_truncation'),
    }.items():
      get = lambda figure, bucket: found[
          f'slice/{figure}_by_{division}/{bucket}'
      ]
      self.assertEqual(get('bias', left), -0.3125)
      self.assertEqual(get('mse', left), (0.25 + 0.25 + 0.0625) / 4)
      self.assertEqual(get('value', left), 2.75 / 4)
      self.assertEqual(get('advantage', left), 1.25 / 4)
      self.assertEqual(get('delta', left), 0.125)
      self.assertEqual(get('bias', right), -0.125)
      self.assertEqual(get('mse', right), (0.0625 + 0.25) / 2)
      self.assertEqual(get('delta', right), -0.125)

  def test_C4_by_tenth_and_by_power_of_two(self):
    found = slices.figures(table())
    # j / N: 0, 0.25, 0.5, 0.75 and 0, 0.5.
    tenths = {
        int(name.rsplit('/', 1)[1]): value
        for name, value in found.items()
        if name.startswith('slice/value_by_position/')
    }
    self.assertEqual(tenths, {0: 0.375, 2: 0.5, 5: 0.375, 7: 1.0})
    # Index 0, 1, 2 to 3.
    powers = {
        int(name.rsplit('/', 1)[1]): value
        for name, value in found.items()
        if name.startswith('slice/advantage_by_index/')
    }
    self.assertEqual(powers, {0: 0.125, 1: 0.5, 2: 0.125})

  def test_C4_buckets_of_the_index_are_named_by_their_lower_bound(self):
    index = [0, 1, 2, 3, 4, 7, 8, 15, 16]
    n = len(index)
    found = slices.divisions(
        table(
            value=np.zeros(n), action_index=index, length=[99] * n,
            source=['s'] * n, family=['f'] * n, termination=['e'] * n,
        )
    )['index']
    self.assertEqual(found.tolist(), [0, 1, 2, 2, 4, 4, 8, 8, 16])

  def test_C4_residual_at_cuts_alone(self):
    found = slices.at_cuts(table())
    self.assertEqual(found['critic/delta_cut'], (0.25 - 0.75) / 2)
    self.assertEqual(found['critic/delta_cut_abs'], 0.5)
    self.assertEqual(slices.at_cuts(table(at_cut=[False] * 6)), {})

  def test_C2_errors_by_version_gap(self):
    found = slices.lag(table())
    # Gap 0: errors -0.5 -0.5; gap 3: -0.25 0 0.25; 40 is in the last bucket.
    self.assertEqual(found['slice/bias_by_gap/0'], -0.5)
    self.assertEqual(found['slice/mse_by_gap/0'], 0.25)
    self.assertEqual(found['slice/bias_by_gap/3'], 0.0)
    self.assertAlmostEqual(found['slice/mse_by_gap/3'], 0.125 / 3)
    self.assertEqual(found['slice/bias_by_gap/16'], -0.5)
    self.assertEqual(found['slice/tokens_by_gap/3'], 3.0)
    # Equal returns have no explained variance (C3).
    self.assertIsNone(found['slice/explained_variance_by_gap/0'])
    # R = 1 1 0: mean 2/3, variance 2/9. R - V = 0.25 0 -0.25: 1/24.
    self.assertAlmostEqual(
        found['slice/explained_variance_by_gap/3'], 1 - (1 / 24) / (2 / 9)
    )
    self.assertEqual(slices.lag(table(gap=None)), {})

  def test_C14_sums_are_double_precision(self):
    # A float32 running sum of ten million and one loses the one.
    n = 1001
    value = np.full(n, 1e7, np.float32)
    value[0] = 0.0
    found = slices.means(np.zeros(n, int), value=value)[0]
    self.assertEqual(found['value'], 1e7 * (n - 1) / n)
    self.assertEqual(found['count'], n)

  def test_C7_held_out_figures_have_their_own_names(self):
    found = slices.figures(table()) | slices.at_cuts(table())
    found |= slices.lag(table())
    moved = slices.under('holdout', found)
    self.assertIn('critic/holdout/delta_cut', moved)
    self.assertIn('slice/holdout/bias_by_gap/3', moved)
    self.assertEqual(tags.unknown([*found, *moved]), [])

  def test_no_tokens_have_no_slices(self):
    empty = table().where(np.zeros(6, bool))
    self.assertEqual(slices.figures(empty), {})
    self.assertEqual(slices.lag(empty), {})


if __name__ == '__main__':
  absltest.main()
