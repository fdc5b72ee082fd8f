"""C6: value curves of matched successes and failures."""

import numpy as np
from absl.testing import absltest

from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import tags
from rl_tpu.metrics import value_curves


def table(rollouts) -> diagnostics.CriticTable:
  """One (id, family, values) a rollout."""
  names = ('value', 'rollout', 'index', 'length', 'family')
  columns = {name: [] for name in names}
  for name, family, values in rollouts:
    n = len(values)
    columns['value'] += values
    columns['rollout'] += [name] * n
    columns['index'] += range(n)
    columns['length'] += [n] * n
    columns['family'] += [family] * n
  size = len(columns['value'])
  return diagnostics.CriticTable(
      value=np.asarray(columns['value'], float),
      target=np.zeros(size),
      rollout=np.asarray(columns['rollout']),
      action_index=np.asarray(columns['index']),
      length=np.asarray(columns['length']),
      bootstrapped=np.zeros(size, bool),
      termination=np.full(size, 'success'),
      source=np.full(size, 's'),
      family=np.asarray(columns['family']),
  )


class CurvesTest(absltest.TestCase):

  def test_C6_mean_by_tenth_of_every_rollout(self):
    found = value_curves.curves(
        table([
            ('a', 'f', [0.1] * 10 + [0.3] * 10),
            ('b', 'f', [0.5, 0.7]),
            ('c', 'f', [0.9]),
        ]),
        solved={'a': True, 'b': False, 'c': None},
        rate={'a': None, 'b': 0.25, 'c': 1.0},
    )
    # Two actions: j / N = 0 and 0.5. c has no outcome that counts.
    np.testing.assert_allclose(found.value[0], [0.1] * 5 + [0.3] * 5)
    self.assertEqual(found.value[1, 0], 0.5)
    self.assertEqual(found.value[1, 5], 0.7)
    self.assertEqual(int(np.isnan(found.value[1]).sum()), 8)
    self.assertEqual(found.solved.tolist(), [True, False])
    self.assertEqual(found.cell, (('f', 4, 'unknown'), ('f', 1, 'seldom')))

  def test_C6_difficulty_is_the_success_before_the_batch(self):
    rates = (None, 0.0, 0.2, 0.5, 0.9, 1.0)
    self.assertEqual(
        [value_curves.difficulty(rate) for rate in rates],
        ['unknown', 'never', 'seldom', 'often', 'often', 'always'],
    )


class MatchTest(absltest.TestCase):

  def test_C6_as_many_of_both_from_every_cell(self):
    # x: 3 successes, 1 failure; y: 2 and 2; z: failures alone.
    cell = ['x'] * 4 + ['y'] * 4 + ['z'] * 2
    solved = [True, True, True, False, True, True, False, False, False, False]
    success, failure, dropped = value_curves.match(
        np.asarray(solved), cell, np.random.default_rng(0)
    )
    self.assertEqual(dropped, 1)
    count = lambda rows: sorted(cell[r] for r in rows)
    self.assertEqual(count(success), ['x', 'y', 'y'])
    self.assertEqual(count(failure), ['x', 'y', 'y'])
    self.assertTrue(all(solved[r] for r in success))
    self.assertFalse(any(solved[r] for r in failure))
    self.assertLen(set(success.tolist()), 3)

  def test_C6_matching_takes_the_difference_of_cells_away(self):
    # Short rollouts have value 0.8 whatever comes out, long ones 0.2;
    # successes are mostly short. Unmatched means: 0.68 and 0.32.
    value = np.repeat([[0.8], [0.2], [0.8], [0.2]], [8, 2, 2, 8], axis=0)
    curves = value_curves.Curves(
        value=np.tile(value, (1, 10)),
        solved=np.arange(20) < 10,
        cell=tuple(['short'] * 8 + ['long'] * 2 + ['short'] * 2 + ['long'] * 8),
    )
    found = value_curves.compare(curves, seed=0)
    np.testing.assert_allclose(found.success.mean, [0.5] * 10)
    np.testing.assert_allclose(found.failure.mean, [0.5] * 10)
    self.assertEqual(found.pairs, 4)
    self.assertEqual(found.dropped_rollouts, 12)
    self.assertIsNone(found.first_deviation)


class DeviationTest(absltest.TestCase):

  def curves(self, success, failure) -> value_curves.Curves:
    value = np.concatenate([success, failure])
    return value_curves.Curves(
        value=value,
        solved=np.arange(len(value)) < len(success),
        cell=('c',) * len(value),
    )

  def test_C6_first_deviation_is_where_the_intervals_part(self):
    # Both are within 0.4 to 0.6 up to the fourth tenth; then 0.3 apart.
    rng = np.random.default_rng(0)
    noise = lambda: rng.uniform(-0.1, 0.1, (30, 10))
    apart = np.where(np.arange(10) < 4, 0.0, 0.3)
    found = value_curves.compare(
        self.curves(0.5 + apart + noise(), 0.5 + noise()), seed=1
    )
    self.assertEqual(found.first_deviation, 4)
    figures = value_curves.figures(found)
    self.assertEqual(figures['critic/first_deviation'], 4.0)
    self.assertEqual(figures['critic/matched_pairs'], 30.0)
    self.assertEqual(tags.unknown(figures), [])

  def test_C6_the_interval_is_over_rollouts(self):
    # Five rollouts of value 0 and five of 1: the mean of ten draws has
    # standard deviation 0.5 / sqrt(10) = 0.158; 90 %: 0.5 +- 0.26, in steps
    # of a tenth.
    value = np.repeat([[0.0], [1.0]], 5, axis=0) * np.ones(10)
    band = value_curves.band(
        value, np.random.default_rng(0), resamples=20000
    )
    np.testing.assert_allclose(band.mean, 0.5)
    # P(mean <= 0.2) = 0.0547 and P(mean <= 0.1) = 0.0107 (binomial, 10).
    np.testing.assert_allclose(band.low, 0.2, atol=1e-12)
    np.testing.assert_allclose(band.high, 0.8, atol=1e-12)

  def test_C6_draws_are_of_whole_rollouts(self):
    # The same rollout is drawn in every tenth, so equal curves stay flat.
    rng = np.random.default_rng(3)
    value = rng.normal(size=(6, 1)) * np.ones(10)
    band = value_curves.band(value, rng, resamples=50)
    np.testing.assert_allclose(band.low, np.full(10, band.low[0]))
    np.testing.assert_allclose(band.high, np.full(10, band.high[0]))

  def test_C6_tenths_without_a_value_are_left_out(self):
    value = np.full((4, 10), np.nan)
    value[:, 0], value[:2, 9] = 0.25, 0.75
    band = value_curves.band(value, np.random.default_rng(0), resamples=200)
    self.assertEqual(band.mean[0], 0.25)
    self.assertEqual(band.mean[9], 0.75)
    self.assertEqual((band.low[9], band.high[9]), (0.75, 0.75))
    self.assertTrue(np.isnan(band.mean[1:9]).all())
    self.assertTrue(np.isnan(band.low[1:9]).all())

  def test_C6_one_pair_deviates_nowhere(self):
    found = value_curves.compare(
        self.curves(np.ones((1, 10)), np.zeros((1, 10))), seed=0
    )
    self.assertEqual(found.pairs, 1)
    self.assertIsNone(found.first_deviation)

  def test_C6_no_rollouts_at_all(self):
    nothing = value_curves.curves(table([]), {}, {})
    figures = value_curves.figures(value_curves.compare(nothing, seed=0))
    self.assertEqual(figures['critic/matched_pairs'], 0.0)
    self.assertIsNone(figures['critic/first_deviation'])

  def test_C6_the_same_seed_gives_the_same_figures(self):
    rng = np.random.default_rng(5)
    curves = self.curves(rng.normal(size=(9, 10)), rng.normal(size=(4, 10)))
    one, other = (value_curves.compare(curves, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.success.low, other.success.low)
    np.testing.assert_array_equal(one.success.mean, other.success.mean)


if __name__ == '__main__':
  absltest.main()
