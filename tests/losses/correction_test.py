"""L9, L10, L13, O3: weights for the gap between sampler and baseline."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import by_id
from rl_tpu.losses import correction
from rl_tpu.types import batch as batch_lib
from tests import golden_io
from tests.losses import cases

CASES = cases.load()
WINDOW = schema.PolicyConfig(baseline='decoupled', is_low=0.5, is_high=2.0)


def policy(kind, **changes):
  return schema.PolicyConfig(
      **{**vars(WINDOW), 'correction': kind, **changes}
  )


def weigh(kind, rho, mask=None, **changes):
  """Weights and gates of one row with the given rho_b."""
  log_gap = np.log(np.asarray([rho], np.float32))
  mask = np.ones(log_gap.shape, bool) if mask is None else np.asarray([mask])
  found = correction.weigh(
      jnp.asarray(log_gap), jnp.asarray(mask), policy=policy(kind, **changes)
  )
  return np.asarray(found.weight_BT)[0], np.asarray(found.gated_BT)[0]


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L13_weights_of_every_kind(self, case):
    gap_BT = correction.log_gap(
        case['logp_old'], case['logp_behavior'], case.mask_BT
    )
    bounds = {name: case.config[name] for name in ('is_low', 'is_high')}
    run = lambda kind, gap_BT: correction.weigh(
        gap_BT, jnp.asarray(case.mask_BT), policy=policy(kind, **bounds)
    )
    tis, icepop, mis = (run(k, gap_BT) for k in ('tis', 'icepop', 'mis'))
    golden_io.assert_close(
        case.trained(tis.weight_BT), case.per_token('tis_weight')
    )
    golden_io.assert_close(
        case.trained(icepop.weight_BT), case.per_token('icepop_weight')
    )
    for found, name in ((icepop, 'icepop_keep'), (mis, 'mis_keep')):
      np.testing.assert_array_equal(
          case.trained(found.gated_BT), case.per_token(name) == 0
      )
    np.testing.assert_array_equal(
        case.trained(mis.weight_BT), case.per_token('mis_keep')
    )
    self.assertFalse(np.asarray(tis.gated_BT).any())

  @parameterized.named_parameters(*CASES)
  def test_L13_L20_seq_mis_by_the_mean_over_all_segments(self, case):
    gap_BT = correction.log_gap(
        case['logp_old'], case['logp_behavior'], case.mask_BT
    )
    origin = case.origin()
    size = origin.rollout_N.shape[0]
    of_rollouts = lambda value_BT: by_id.rollout_sum(
        by_id.segment_sum(value_BT, case.mask_BT, case.segment_BT, size=size),
        origin,
    )
    mean_R = by_id.mean(of_rollouts(gap_BT), of_rollouts(np.ones_like(gap_BT)))
    mean_BT = by_id.at_tokens(
        by_id.at_segments(mean_R, origin), case.segment_BT
    )
    found = correction.weigh(
        mean_BT,
        jnp.asarray(case.mask_BT),
        policy=policy(
            'seq_mis',
            is_low=case.config['is_low'],
            is_high=case.config['is_high'],
        ),
    )
    np.testing.assert_array_equal(
        case.trained(found.gated_BT), case.per_token('seq_mis_keep') == 0
    )
    np.testing.assert_array_equal(
        case.trained(found.weight_BT), case.per_token('seq_mis_keep')
    )


class WeighTest(parameterized.TestCase):

  @parameterized.parameters(
      # rho_b 0.4, 0.5, 1.5, 2.0, 4.0; both bounds are inside.
      ('none', [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]),
      ('tis', [0.4, 0.5, 1.5, 2, 2], [0, 0, 0, 0, 0]),
      ('icepop', [0, 0.5, 1.5, 2, 0], [1, 0, 0, 0, 1]),
      ('mis', [0, 1, 1, 1, 0], [1, 0, 0, 0, 1]),
      ('seq_mis', [0, 1, 1, 1, 0], [1, 0, 0, 0, 1]),
  )
  def test_L13_by_hand(self, kind, weight, gated):
    # A hair inside, where float32 logs round to either side of a bound.
    found = weigh(kind, [0.4, 0.500001, 1.5, 1.999999, 4.0])
    np.testing.assert_allclose(found[0], weight, rtol=1e-5)
    np.testing.assert_array_equal(found[1], gated)

  def test_L13_a_gap_beyond_20_stops_there(self):
    log_gap = jnp.asarray([[50.0, -50.0]])
    found = correction.weigh(
        log_gap, jnp.ones((1, 2), bool), policy=policy('icepop', is_low=1e-12,
                                                       is_high=1e12)
    )
    np.testing.assert_allclose(
        found.weight_BT, [[np.exp(20.0), np.exp(-20.0)]], rtol=1e-5
    )

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_L9_masked_places_weigh_1_and_are_not_gated(self, junk):
    for kind in correction.KINDS:
      weight, gated = weigh(kind, [1.0, junk], [True, False])
      np.testing.assert_array_equal(weight, [1.0, 1.0])
      self.assertFalse(gated.any())

  def test_L13_no_gradient_through_the_weight(self):
    mask = jnp.ones((1, 1), bool)

    def total(base_BT, behaviour_BT):
      gap_BT = correction.log_gap(base_BT, behaviour_BT, mask)
      found = correction.weigh(gap_BT, mask, policy=policy('icepop'))
      return jnp.sum(found.weight_BT)

    at = jnp.asarray([[-1.0]])
    self.assertAlmostEqual(float(total(at, at)), 1.0)
    np.testing.assert_array_equal(jax.grad(total, (0, 1))(at, at), 0.0)

  def test_K18_c_a_gap_that_is_no_number_is_not_gated_away(self):
    weight, gated = weigh('icepop', [np.nan])
    self.assertFalse(gated[0])
    self.assertTrue(np.isnan(weight[0]))

  def test_O3_the_mean_of_a_rollout_and_not_its_product(self):
    # Ten gaps of 1.2: the product 6.2 is out of range, the mean 1.2 is not.
    origin = batch_lib.Origin(
        rollout_N=jnp.asarray([0, 0]), task_R=jnp.asarray([0])
    )
    segment_BT = jnp.asarray([[0] * 4 + [1] * 6])
    mask_BT = jnp.ones((1, 10), bool)
    total_N = by_id.segment_sum(
        jnp.full((1, 10), np.log(1.2)), mask_BT, segment_BT, size=2
    )
    count_N = by_id.segment_sum(jnp.ones((1, 10)), mask_BT, segment_BT, size=2)
    mean_R = by_id.mean(
        by_id.rollout_sum(total_N, origin), by_id.rollout_sum(count_N, origin)
    )
    np.testing.assert_allclose(mean_R, [np.log(1.2)], rtol=1e-6)

  def test_unknown_kind_is_refused(self):
    with self.assertRaisesRegex(ValueError, "policy.correction.*'clip'"):
      weigh('clip', [1.0])


if __name__ == '__main__':
  absltest.main()
