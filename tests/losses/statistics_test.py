"""L6, L10, L18, L19, L21, O1: figures of the trained tokens."""

import functools
import math

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import objective
from rl_tpu.losses import statistics
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import token_types

TYPES = token_types.NAMES


SETTINGS = {
    'ppo': objective.Settings(),
    'dis': objective.Settings(policy=schema.PolicyConfig(loss='dis')),
    'kl': objective.Settings(kl=schema.KlConfig('loss', 'k2', 0.1)),
    'limits': objective.Settings(
        limits=schema.LimitsConfig(advantage=4.0, ratio=3.0, proxy=1.0)
    ),
    'no_limits': objective.Settings(
        limits=schema.LimitsConfig(None, None, None)
    ),
}
SHORT, LONG = 8, 7001


@functools.partial(jax.jit, static_argnames='name')
def _stats(logp_BT, entropy_BT, minibatch, *, name):
  return objective.actor_terms(
      logp_BT, entropy_BT, minibatch, settings=SETTINGS[name]
  )[1]


def run(
    ratio, advantage, *, types=None, segment=None, weight=None, entropy=None,
    reference=None, length=3, settings='ppo',
):
  """Statistics of one row whose base log-probabilities are 0.

  The row is padded to one of two lengths with places of weight 0.
  """
  count = len(ratio)
  size = SHORT if count <= SHORT else LONG

  def row(values, dtype=np.float32):
    values = [0] * count if values is None else values
    out = np.zeros((1, size), dtype)
    out[0, :count] = values
    return out

  zero = row(None)
  weight = row([1.0 / count] * count if weight is None else weight)
  minibatch = batch_lib.Minibatch(
      rows=batch_lib.Rows(
          zero.astype(np.int32), zero.astype(np.int32),
          row(segment, np.int32), weight > 0, zero,
      ),
      advantage_BT=row(advantage),
      return_BT=zero,
      value_BT=zero,
      base_logp_BT=zero,
      reference_logp_BT=row(reference),
      policy_weight_BT=weight,
      critic_weight_BT=zero,
      strata=batch_lib.Strata(
          type_BT=row(types, np.int32),
          position_BT=row(np.arange(count) % 10, np.int32),
          length_BT=row([length] * count, np.int32),
      ),
      origin=batch_lib.Origin(
          rollout_N=np.asarray([0, 0, 1, -1], np.int32),
          task_R=np.asarray([0, 1, -1], np.int32),
      ),
  )
  stats = _stats(row(np.log(ratio)), row(entropy), minibatch, name=settings)
  return jax.device_get(stats)


class StrataTest(absltest.TestCase):

  def test_L19_means_by_token_type(self):
    name, value = TYPES.index('tool_name'), TYPES.index('arg_value')
    stats = run(
        [1.0, 1.5, 0.5, 2.0], [1.0, 2.0, -1.0, 9.0],
        types=[name, name, value, value], entropy=[0.2, 0.4, 1.0, 7.0],
        # The last token is not trained.
        weight=[0.25, 0.25, 0.25, 0.0],
    )
    found = statistics.strata_values(stats['strata_table'])
    of_names = found['type', 'tool_name']
    self.assertEqual(of_names['count'], 2)
    self.assertAlmostEqual(of_names['entropy'], 0.3, places=6)
    self.assertAlmostEqual(of_names['ratio'], 1.25, places=6)
    self.assertAlmostEqual(of_names['advantage'], 1.5, places=6)
    # 1.5 is above 1.2 with A > 0.
    self.assertAlmostEqual(of_names['clip_fraction'], 0.5, places=6)
    self.assertAlmostEqual(
        of_names['approx_kl_k1'], -np.log(1.5) / 2, places=6
    )
    of_values = found['type', 'arg_value']
    self.assertEqual(of_values['count'], 1)
    self.assertAlmostEqual(of_values['entropy'], 1.0, places=6)
    self.assertNotIn(('type', 'text'), found)

  def test_L19_means_by_tenth_and_by_length(self):
    stats = run([1.0, 2.0, 4.0], [1.0] * 3)
    found = statistics.strata_values(stats['strata_table'])
    for tenth, ratio in (('0', 1.0), ('1', 2.0), ('2', 4.0)):
      self.assertAlmostEqual(
          found['position', tenth]['ratio'], ratio, places=5
      )
    # 2^3 actions and more.
    self.assertAlmostEqual(found['length', '8']['ratio'], 7 / 3, places=5)
    self.assertEqual(found['length', '8']['count'], 3)
    self.assertLen([name for name in found if name[0] == 'length'], 1)

  def test_L19_the_last_tenth_and_the_last_length(self):
    # The tenth token of eleven is alone in its tenth; 2^30 actions are in
    # the last stratum, which begins at 2^23.
    stats = run(
        [*[1.0] * 9, 3.0, 1.0], [1.0] * 11, length=30
    )
    found = statistics.strata_values(stats['strata_table'])
    self.assertEqual(found['position', '9']['count'], 1)
    self.assertAlmostEqual(found['position', '9']['ratio'], 3.0, places=5)
    self.assertEqual(found['length', str(2**23)]['count'], 11)
    self.assertLen([name for name in found if name[0] == 'length'], 1)

  def test_O1_effective_sample_size_of_a_stratum(self):
    # Ratios 1 and 3: 16 / (2 * 10).
    stats = run([1.0, 3.0], [1.0, 1.0], types=[1, 1])
    found = statistics.strata_values(stats['strata_table'])
    self.assertAlmostEqual(found['type', TYPES[1]]['ess_share'], 0.8, places=5)
    self.assertNotIn('ratio_squared', found['type', TYPES[1]])

  def test_L6_realised_kl_by_type_and_by_rollout(self):
    stop = TYPES.index('stop')
    stats = run(
        [1.0, 1.0, 1.0], [0.0] * 3, types=[0, stop, stop],
        segment=[0, 1, 2], reference=[-0.5, 0.25, -0.25], settings='kl',
    )
    found = statistics.strata_values(stats['strata_table'])
    # x = log pi - log pi_ref = .5, -.25, .25; k3 = exp(-x) - 1 + x.
    self.assertAlmostEqual(
        found['type', 'text']['reference_kl_k1'], 0.5, places=6
    )
    self.assertAlmostEqual(
        found['type', 'stop']['reference_kl_k3'],
        (np.exp(0.25) + np.exp(-0.25)) / 2 - 1, places=6,
    )
    table = stats['rollout_table']
    column = statistics.ROLLOUT_FIGURES.index('reference_kl_k1')
    # Rollout 0 has segments 0 and 1, rollout 1 has segment 2.
    np.testing.assert_allclose(table[:, column], [0.25, 0.25, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(table[:, 0], [2, 1, 0])
    # Over all tokens; (.5 - .25 + .25) / 3.
    self.assertAlmostEqual(
        statistics.values(stats)['reference_kl_k1'], 1 / 6, places=6
    )

  def test_L9_places_without_weight_enter_no_table(self):
    clean = run([1.5, 1.0], [1.0, 0.0], weight=[1.0, 0.0])
    junk = run(
        [1.5, np.nan], [1.0, np.inf], weight=[1.0, 0.0],
        entropy=[0.0, np.nan], reference=[0.0, -np.inf],
    )
    for name in ('strata_table', 'rollout_table', 'ratio_table'):
      np.testing.assert_array_equal(junk[name], clean[name], err_msg=name)


class LimitsTest(absltest.TestCase):

  def test_L18_tokens_above_a_limit_are_counted_and_their_rollout_known(self):
    # |A| 5 and 2; ratio 3.5; proxy w * rho * |A| = .25 * 3.5 * 2 = 1.75 and
    # .25 * 1 * 5 = 1.25 (A < 0: neither is clipped).
    stats = run(
        [1.0, 3.5, 1.0, 1.0], [-5.0, -2.0, 1.0, 1.0], segment=[0, 1, 2, 2],
        settings='limits',
    )
    found = statistics.values(stats)
    self.assertEqual(found['over_advantage_count'], 1)
    self.assertEqual(found['over_ratio_count'], 1)
    self.assertEqual(found['over_proxy_count'], 2)
    column = statistics.ROLLOUT_FIGURES.index('over_limit')
    np.testing.assert_array_equal(stats['rollout_table'][:, column], [2, 0, 0])

  def test_L18_a_token_on_a_limit_is_not_above_it(self):
    # |A| is 4, and the proxy .25 * 1 * 4 = 1; ratios of 1 are on no limit.
    stats = run([1.0] * 4, [-4.0, 1.0, 1.0, 1.0], settings='limits')
    found = statistics.values(stats)
    self.assertEqual(found['over_advantage_count'], 0)
    self.assertEqual(found['over_proxy_count'], 0)

  def test_L18_a_limit_of_none_is_off(self):
    stats = run([50.0], [-50.0], settings='no_limits')
    found = statistics.values(stats)
    for name in ('advantage', 'ratio', 'proxy'):
      self.assertEqual(found[f'over_{name}_count'], 0.0)

  def test_L18_the_proxy_is_the_derivative_by_log_pi(self):
    # PPO: w rho |A| where not clipped: .25 * 1.1 * 2; the second is clipped.
    stats = run([1.1, 1.3, 1.0, 1.0], [2.0, 1.0, 0.0, -4.0])
    total = stats['proxy'][0]
    self.assertAlmostEqual(float(total), 0.25 * (2.2 + 0.0 + 0.0 + 4.0), 5)
    column = statistics.ROLLOUT_FIGURES.index('proxy')
    self.assertAlmostEqual(float(stats['rollout_table'][0, column]), 1.55, 5)


class GateTest(absltest.TestCase):

  def test_L10_effective_share_is_the_weight_of_the_ungated(self):
    stats = run(
        [1.0, 9.0, 0.1], [1.0] * 3, weight=[0.5, 0.25, 0.25], settings='dis'
    )
    found = statistics.values(stats)
    # 9 and 0.1 are out of (0.2, 4).
    self.assertAlmostEqual(found['effective_share'], 0.5, places=6)
    self.assertAlmostEqual(found['gated_fraction'], 2 / 3, places=6)

  def test_L14_mean_ratio_times_advantage_is_shown(self):
    found = statistics.values(run([1.0, 2.0], [3.0, -1.0], settings='dis'))
    self.assertAlmostEqual(found['ratio_advantage'], 0.5, places=6)


class QuantileTest(parameterized.TestCase):

  def test_L19_quantiles_of_the_ratio(self):
    # 1, 1.001, ..., 1.2 thirty-five times: the bins are 5 % of log rho.
    ratio = np.linspace(1.0, 1.2, 7001)
    stats = run(ratio, np.zeros(7001))
    found = statistics.values(stats)
    self.assertAlmostEqual(found['ratio_p50'], 1.1, delta=0.005)
    self.assertAlmostEqual(found['ratio_p99'], 1.198, delta=0.01)
    self.assertAlmostEqual(found['ratio_max'], 1.2, places=5)
    self.assertEqual(float(stats['ratio_table'].sum()), LONG)

  def test_L19_a_few_extremes_show(self):
    # One token in fifty at 30: the share is small, p99 is not.
    ratio = np.where(np.arange(500) % 50 == 0, 30.0, 1.0)
    found = statistics.values(run(ratio, np.zeros(500)))
    self.assertAlmostEqual(found['ratio_p50'], 1.0, delta=1e-3)
    self.assertAlmostEqual(np.log(found['ratio_p99']), np.log(30.0), delta=0.2)

  @parameterized.parameters(1e-9, 1e9)
  def test_L21_ratios_beyond_20_are_in_the_last_bins(self, ratio):
    stats = run([ratio], [0.0])
    edge = stats['ratio_table'][0 if ratio < 1 else -1]
    self.assertEqual(edge, 1.0)

  @parameterized.parameters(
      # Of four tokens in one bin: half, a quarter, three quarters through it.
      (256, 0.5, 256.5), (300, 0.25, 300.25), (100, 0.75, 100.75),
      (511, 1.0, 512.0), (0, 0.5, 0.5),
  )
  def test_L19_within_a_bin_a_quantile_is_interpolated(self, b, share, place):
    counts = np.zeros(512)
    counts[b] = 4.0
    # Edge k of the bins of |x| is 1e-4 * ((1 + 20 / 1e-4)^t - 1), t from -1
    # to 1.
    t = place / 256.0 - 1.0
    x = math.copysign(1e-4 * ((1.0 + 20.0 / 1e-4) ** abs(t) - 1.0), t)
    self.assertAlmostEqual(
        math.log(statistics.ratio_quantile(counts, share)), x, places=9
    )

  def test_L19_a_quantile_between_bins_is_at_their_edge(self):
    counts = np.zeros(512)
    counts[[256, 300]] = 2.0
    # Half of the tokens lie below the end of the first bin.
    found = statistics.ratio_quantile(counts, 0.5)
    self.assertAlmostEqual(
        math.log(found), 1e-4 * (200001.0 ** (1.0 / 256.0) - 1.0), places=9
    )

  def test_no_tokens_have_no_quantile(self):
    empty = np.zeros(statistics.RATIO_BINS)
    self.assertIsNone(statistics.ratio_quantile(empty, 0.5))


class ValuesTest(absltest.TestCase):

  def test_L18_L21_counts_are_shown_under_their_prefix(self):
    found = statistics.values({
        'actor/ratio_saturated': (2.0, 8.0),
        'actor/over_ratio': (3.0, 4.0),
        'nonfinite_logits': (1.0, 2.0),
        'actor/entropy': (1.0, 4.0),
    })
    self.assertEqual(
        found,
        {
            'actor/ratio_saturated': 0.25,
            'actor/ratio_saturated_count': 2.0,
            'actor/over_ratio': 0.75,
            'actor/over_ratio_count': 3.0,
            'nonfinite_logits': 0.5,
            'nonfinite_logits_count': 1.0,
            'actor/entropy': 0.25,
        },
    )


class MergeTest(absltest.TestCase):

  def test_L8_tables_and_maxima_of_two_microbatches(self):
    left = run([1.0, 2.0], [1.0, 1.0])
    right = run([3.0, 1.5], [1.0, 1.0])
    merged = statistics.merge(left, right)
    whole = statistics.values(merged)
    self.assertAlmostEqual(whole['ratio'], 7.5 / 4, places=6)
    self.assertAlmostEqual(whole['ratio_max'], 3.0, places=6)
    table = statistics.strata_values(merged['strata_table'])
    self.assertEqual(table['type', 'text']['count'], 4)
    self.assertAlmostEqual(table['type', 'text']['ratio'], 7.5 / 4, places=6)


if __name__ == '__main__':
  absltest.main()
