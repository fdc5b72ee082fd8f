"""Critic figures, intervals and alignment against the golden file."""

import json
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import intervals
from rl_tpu.metrics import tags

GOLDEN = pathlib.Path(
    os.environ.get(
        'RL_TPU_GOLDEN_DIR', pathlib.Path(__file__).parent.parent / 'golden'
    )
)


def golden_cases() -> list[dict]:
  with open(GOLDEN / 'diagnostics.json', encoding='utf-8') as file:
    return json.load(file)['cases']


def table(
    value,
    target,
    rollout,
    action_index,
    *,
    bootstrapped=None,
    length=None,
) -> diagnostics.CriticTable:
  n = len(value)
  return diagnostics.CriticTable(
      value=np.asarray(value, float),
      target=np.asarray(target, float),
      rollout=np.asarray(rollout),
      action_index=np.asarray(action_index),
      length=np.full(n, 10) if length is None else np.asarray(length),
      bootstrapped=(
          np.zeros(n, bool) if bootstrapped is None else np.array(bootstrapped)
      ),
      termination=np.full(n, 'success'),
      source=np.full(n, 's'),
      family=np.full(n, 'f'),
  )


def close(test, found, expected, msg=None):
  if expected is None:
    test.assertIsNone(found, msg)
  else:
    test.assertIsNotNone(found, msg)
    np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=msg)


class GoldenTest(parameterized.TestCase):

  def test_golden_diagnostics(self):
    cases = golden_cases()
    self.assertGreaterEqual(len(cases), 6)
    for case in cases:
      with self.subTest(case['id']):
        self.check_critic(case)
        self.check_interval(case)
        self.check_alignment(case)

  def check_critic(self, case):
    """C3, C4, C5."""
    expected = case['expected']
    found = table(
        case['values'],
        case['returns'],
        case['rollout'],
        case['action_index'],
        bootstrapped=[case['bootstrapped'][r] for r in case['rollout']],
    )
    figures = diagnostics.critic_figures(found)
    curve = diagnostics.calibration(found, bins=case['bins'])
    for name in (
        'explained_variance',
        'explained_variance_rollout',
        'explained_variance_scored',
        'bias',
        'mse',
    ):
      close(self, figures[f'critic/{name}'], expected[name], name)
    close(self, curve.ece, expected['ece'])
    close(self, curve.ece_rollout, expected['ece_rollout'])
    self.assertLen(curve.bins, len(expected['calibration']))
    for one, wanted in zip(curve.bins, expected['calibration']):
      for name, number in wanted.items():
        close(self, getattr(one, name), number, name)

  def check_interval(self, case):
    """A3, with the file's own resamples."""
    found = intervals.task_bootstrap(
        case['per_task_scores'],
        resamples=0,
        seed=0,
        level=case['level'],
        resample_index=np.array(case['resample_index']),
    )
    wanted = case['expected']['bootstrap']
    np.testing.assert_allclose(
        found, [wanted['point'], wanted['low'], wanted['high']], rtol=1e-9
    )

  def check_alignment(self, case):
    """O4."""
    found = diagnostics.alignment(case['logp_behavior'], case['logp_trainer'])
    wanted = case['expected']['alignment']
    close(self, found['max_abs'], wanted['max_abs'])
    close(self, found['mean_abs'], wanted['mean_abs'])
    close(self, found['k1'], wanted['kl_behavior_trainer_k1'])
    close(self, found['k3'], wanted['kl_behavior_trainer_k3'])


class CriticTest(parameterized.TestCase):

  def test_C3_worked_by_hand(self):
    # R = 0 1 1 1, V = 0.5 each of the first two: Var(R) = 3/16.
    # R - V = -0.5 0.5 0 0: mean 0, Var = 1/8; 1 - (1/8)/(3/16) = 1/3.
    found = diagnostics.explained_variance([0, 1, 1, 1], [0.5, 0.5, 1, 1])
    self.assertAlmostEqual(found, 1 / 3)
    # A bias is no variance: V one too high everywhere explains as much.
    found = diagnostics.explained_variance([0, 1, 1, 1], [1.5, 1.5, 2, 2])
    self.assertAlmostEqual(found, 1 / 3)

  @parameterized.parameters(
      ([], []), ([1.0, 1.0], [0.0, 5.0]), ([100.3] * 7, [0.0] * 7)
  )
  def test_C3_equal_returns_are_undefined(self, target, value):
    self.assertIsNone(diagnostics.explained_variance(target, value))

  def test_C3_scored_figures_leave_bootstrapped_rollouts_out(self):
    figures = diagnostics.critic_figures(
        table(
            [0.5, 0.5, 0.2, 0.9],
            [0, 1, 7, 9],
            ['a', 'a', 'b', 'b'],
            [0, 1, 0, 1],
            bootstrapped=[False, False, True, True],
        )
    )
    # R = 0 1, V = 0.5 0.5: Var(R - V) = Var(R).
    self.assertAlmostEqual(figures['critic/explained_variance_scored'], 0.0)
    self.assertAlmostEqual(figures['critic/anchored_share'], 0.5)
    self.assertEqual(tags.unknown(figures), [])

  def test_C5_bootstrapped_rollouts_are_shown_apart(self):
    figures = diagnostics.critic_figures(
        table(
            [0.5, 0.5, 0.25, 0.25],
            [1.0, 1.0, 0.25, 0.25],
            ['a', 'a', 'b', 'b'],
            [0, 1, 0, 1],
            bootstrapped=[False, False, True, True],
        )
    )
    self.assertEqual(figures['critic/ece_scored'], 0.5)
    self.assertEqual(figures['critic/ece_bootstrapped'], 0.0)
    self.assertEqual(figures['critic/ece'], 0.25)

  def test_C3_no_tokens_is_undefined_not_an_error(self):
    figures = diagnostics.critic_figures(table([], [], [], []))
    self.assertEqual(set(figures.values()), {None})

  def test_C4_errors_by_position(self):
    found = table(
        [1.0, 2.0, 3.0, 4.0],
        [0.0, 0.0, 3.0, 5.0],
        ['a'] * 4,
        [0, 1, 2, 3],
        length=[4] * 4,
    )
    # j / N = 0, 0.25, 0.5, 0.75: tenths 0, 2, 5, 7.
    self.assertEqual(
        diagnostics.relative_position(found).tolist(), [0, 2, 5, 7]
    )
    by_place = diagnostics.errors_by(
        found, diagnostics.relative_position(found) < 5
    )
    self.assertEqual(by_place[True], diagnostics.Errors(1.5, 2.5, 2))
    self.assertEqual(by_place[False], diagnostics.Errors(-0.5, 0.5, 2))

  def test_C4_absolute_positions_are_powers_of_two(self):
    index = np.array([0, 1, 2, 3, 4, 7, 8])
    found = table(index, index, ['a'] * 7, index, length=[9] * 7)
    self.assertEqual(
        diagnostics.absolute_position(found).tolist(), [0, 1, 2, 2, 3, 3, 4]
    )

  def test_C5_order_of_storage_does_not_matter(self):
    rng = np.random.default_rng(0)
    value = rng.integers(0, 3, 40) / 2
    target = rng.integers(0, 2, 40).astype(float)
    rollout = np.array([f'r{i}' for i in rng.integers(0, 12, 40)])
    index = np.arange(40)
    order = rng.permutation(40)
    left = diagnostics.calibration(table(value, target, rollout, index))
    right = diagnostics.calibration(
        table(value[order], target[order], rollout[order], index[order])
    )
    for one, other in zip(left.bins, right.bins):
      np.testing.assert_allclose(
          [one.count, one.mean_return, one.mean_value_rollout],
          [other.count, other.mean_return, other.mean_value_rollout],
      )
    self.assertAlmostEqual(left.ece_rollout, right.ece_rollout)

  def test_O4_large_gaps_stay_finite(self):
    found = diagnostics.alignment([0.0, 0.0], [-800.0, 800.0])
    self.assertEqual(found['max_abs'], 800.0)
    # exp is clipped at 20: (e^-20 - 1 + 800 + e^20 - 1 - 800) / 2.
    self.assertAlmostEqual(
        found['k3'], (np.exp(-20) - 1 + np.exp(20) - 1) / 2, places=3
    )
    self.assertIsNone(diagnostics.alignment([], [])['max_abs'])


class IntervalsTest(absltest.TestCase):

  def test_A3_interval_covers_the_point_and_is_reproducible(self):
    scores = {f't{i}': float(i % 4 == 0) for i in range(256)}
    found = intervals.task_bootstrap(scores, resamples=10000, seed=3)
    again = intervals.task_bootstrap(scores, resamples=10000, seed=3)
    self.assertEqual(found, again)
    point, low, high = found
    self.assertEqual(point, 0.25)
    # Normal approximation: 0.25 +- 1.96 * sqrt(0.25 * 0.75 / 256) = 0.053.
    self.assertBetween(low, 0.25 - 0.06, 0.25 - 0.045)
    self.assertBetween(high, 0.25 + 0.045, 0.25 + 0.06)

  def test_A3_unit_is_the_task_not_the_rollout(self):
    # Task a: mean 0.25 over four rollouts; task b: 1. Mean of means 0.625.
    point, low, high = intervals.task_bootstrap(
        {'a': [0, 0, 0, 1], 'b': [1.0]}, resamples=200, seed=0
    )
    self.assertEqual((point, low, high), (0.625, 0.25, 1.0))

  def test_A3_no_tasks(self):
    self.assertTrue(
        np.isnan(intervals.task_bootstrap({}, resamples=9, seed=0)).all()
    )

  def test_A3_seeds_are_a_second_level(self):
    # Every task of a seed has one score: only the choice of seeds varies.
    arms = [{'a': s, 'b': s} for s in (0.0, 0.5, 1.0)]
    point, low, high = intervals.seed_bootstrap(arms, resamples=4000, seed=1)
    self.assertEqual(point, 0.5)
    # All three draws the worst seed: 1 in 27 = 3.7 % > 2.5 %.
    self.assertEqual((low, high), (0.0, 1.0))
    one = intervals.seed_bootstrap(
        [{'a': 0.0, 'b': 1.0}], resamples=4000, seed=1
    )
    self.assertEqual(one, (0.5, 0.0, 1.0))

  def test_A4_paired_difference_is_narrower(self):
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2, 200).astype(float)
    left = {f't{i}': b for i, b in enumerate(np.maximum(base, 0.0))}
    right = dict(left)
    right['t0'] = 1.0 - right['t0']
    point, low, high = intervals.paired_bootstrap(
        left, right, resamples=2000, seed=0
    )
    self.assertAlmostEqual(abs(point), 1 / 200)
    self.assertLess(high - low, 0.02)
    with self.assertRaisesRegex(ValueError, 't0'):
      left.pop('t0')
      intervals.paired_bootstrap(left, right, resamples=9, seed=0)


if __name__ == '__main__':
  absltest.main()
