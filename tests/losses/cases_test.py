"""Public cases of masks, denominators and overflow (K03, K11, K12, K18)."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.losses import kl
from rl_tpu.losses import objective
from rl_tpu.losses import policy
from rl_tpu.losses import ratio
from rl_tpu.losses import value
from rl_tpu.types import batch as batch_lib

NONFINITE = (0.0, 1e30, np.inf, -np.inf, np.nan)
NO_KL = schema.KlConfig()


def minibatch(weight, **columns) -> batch_lib.Minibatch:
  """A minibatch whose unnamed columns are zeros."""
  weight = jnp.asarray(weight, jnp.float32)
  zeros = jnp.zeros(weight.shape)
  ids = zeros.astype(jnp.int32)
  behaviour = jnp.asarray(columns.pop('behaviour', zeros), jnp.float32)
  filled = {
      name: jnp.asarray(columns.get(name, zeros), jnp.float32)
      for name in (
          'advantage_BT', 'return_BT', 'value_BT', 'base_logp_BT',
          'reference_logp_BT',
      )
  }
  return batch_lib.Minibatch(
      rows=batch_lib.Rows(ids, ids, ids, weight > 0, behaviour),
      policy_weight_BT=weight,
      critic_weight_BT=weight,
      **filled,
  )


class MaskTest(parameterized.TestCase):

  @parameterized.parameters(*itertools.product(NONFINITE, NONFINITE))
  def test_K03_masked_places_are_inert(self, x, y):
    """Token mean of two trained tokens, whatever stands in the others."""
    batch = minibatch(
        [[0.5, 0.5, 0.0, 0.0]],
        base_logp_BT=[[-1.0, -2.0, x, y]],
        advantage_BT=[[0.5, -1.0, y, x]],
        behaviour=[[-1.0, -2.0, y, y]],
    )

    def loss(logp_BT, entropy_BT):
      return objective.actor_terms(
          logp_BT, entropy_BT, batch, clip=schema.ClipConfig(), kl=NO_KL,
          entropy_coef=0.0,
      )

    logp_BT = jnp.asarray([[-1.1, -1.9, x, y]], jnp.float32)
    entropy_BT = jnp.asarray([[1.0, 2.0, y, x]], jnp.float32)
    (total, stats), gradient = jax.value_and_grad(loss, has_aux=True)(
        logp_BT, entropy_BT
    )
    # -(0.5 e^-0.1 - 1.0 e^0.1) / 2; d1 = -0.5 e^-0.1 / 2, d2 = e^0.1 / 2.
    np.testing.assert_allclose(total, 0.326376104528834, rtol=1e-6)
    np.testing.assert_allclose(
        gradient, [[-0.226209354509, 0.552585459038, 0, 0]], rtol=1e-6
    )
    for name, number in objective.stat_values(stats).items():
      self.assertTrue(np.isfinite(number), name)
    self.assertAlmostEqual(objective.stat_values(stats)['entropy'], 1.5)

  @parameterized.parameters(*NONFINITE)
  def test_G15_L9_masked_critic_places_are_inert(self, x):
    batch = minibatch(
        [[0.5, 0.5, 0.0]], return_BT=[[1.0, 0.0, x]], value_BT=[[0.5, 0.5, x]]
    )
    loss = lambda v: objective.critic_terms(v, batch, value_clip=0.2)[0]
    value_BT = jnp.asarray([[0.6, 0.4, x]], jnp.float32)
    total, gradient = jax.value_and_grad(loss)(value_BT)
    # 0.5 * 0.4^2 each; weights 0.5.
    np.testing.assert_allclose(total, 0.08, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[-0.2, 0.2, 0.0]], rtol=1e-6)

  @parameterized.parameters('k1', 'k2', 'k3')
  def test_G15_masked_places_of_the_kl_are_inert(self, estimator):
    mask_BT = np.asarray([[True, False]])
    for x, importance in itertools.product(NONFINITE, (False, True)):
      term = lambda logp: kl.kl_loss(
          logp,
          jnp.asarray([[-1.2, x]]),
          jnp.asarray([[-1.1, x]]),
          mask_BT,
          estimator=estimator,
          importance=importance,
      ).sum()
      total, gradient = jax.value_and_grad(term)(jnp.asarray([[-1.0, x]]))
      self.assertTrue(np.isfinite(total))
      self.assertTrue(np.isfinite(gradient).all())
      self.assertEqual(gradient[0, 1], 0.0)

  @parameterized.parameters(*NONFINITE)
  def test_L9_K16_nothing_to_train_is_exactly_zero(self, x):
    batch = minibatch([[0.0, 0.0]], advantage_BT=[[x, x]], return_BT=[[x, x]])
    array = jnp.asarray([[x, x]], jnp.float32)

    def actor(logp_BT):
      return objective.actor_terms(
          logp_BT, array, batch, clip=schema.ClipConfig(dual=3.0),
          kl=schema.KlConfig(in_='loss', estimator='k3', coef=1.0),
          entropy_coef=1.0,
      )[0]

    critic = lambda v: objective.critic_terms(v, batch, value_clip=0.1)[0]
    for loss in (actor, critic):
      total, gradient = jax.value_and_grad(loss)(array)
      self.assertEqual(float(total), 0.0)
      np.testing.assert_array_equal(gradient, 0.0)


class DenominatorTest(parameterized.TestCase):

  @parameterized.parameters(
      [[[0, 1, 2, 3, 4]]],
      [[[0], [1, 2, 3, 4]]],
      [[[0, 1], [2, 3, 4]]],
      [[[0], [1], [2], [3], [4]]],
      [[[0], [1, 2, 3, 4], []]],
  )
  def test_K11_the_split_of_a_batch_does_not_matter(self, parts):
    """Token mean of 3, 1, 1, 2, 0 is 1.4, and so is its slope."""
    x = np.asarray([3.0, 1.0, 1.0, 2.0, 0.0])
    rollout = np.asarray([0, 1, 1, 1, 1])
    weight = aggregation.weights(
        np.ones(5, bool), segment=rollout, rollout=rollout, task=rollout,
        mode='token',
    )
    theta = 1.0
    total = sum(np.sum(weight[p] * theta * x[p]) for p in parts if p)
    self.assertAlmostEqual(float(total), 1.4, places=6)

  @parameterized.parameters(0, 1000)
  def test_K12_only_trained_tokens_are_in_the_divisor(self, tool_tokens):
    # Run 1 trains 2 tokens, losses 1.5 and 0.5; run 2 trains 3, losses 1.
    mask = np.asarray([True, False, False, True] + [False] * tool_tokens
                      + [False] + [True] * 3)
    rollout = np.repeat([0, 1], [5 + tool_tokens, 3])
    loss = np.full(len(mask), 77.0)
    loss[mask] = [1.5, 0.5, 1.0, 1.0, 1.0]
    weight = aggregation.weights(
        mask, segment=rollout, rollout=rollout, task=rollout, mode='token'
    )
    self.assertAlmostEqual(float(np.sum(weight * loss)), 1.0, places=6)

  def test_L11_splitting_a_segment_changes_segment_mean_only(self):
    # Two rollouts of 4 and 2 tokens; the first is cut into 3 + 1 (G24).
    rollout = np.asarray([0, 0, 0, 0, 1, 1])
    loss = np.asarray([1.0, 2.0, 3.0, 10.0, 5.0, 6.0])
    whole, split = rollout, np.asarray([0, 0, 0, 2, 1, 1])
    changed = []
    for mode in aggregation.MODES:
      totals = [
          np.sum(loss * aggregation.weights(
              np.ones(6, bool), segment=segment, rollout=rollout,
              task=rollout, mode=mode, constant=8.0,
          ))
          for segment in (whole, split)
      ]
      if not np.isclose(*totals, rtol=1e-6):
        changed.append(mode)
    self.assertEqual(changed, ['segment_mean'])

  def test_L11_order_of_tokens_and_ids_does_not_matter(self):
    rng = np.random.default_rng(0)
    rollout = np.repeat(np.arange(5), [3, 1, 4, 2, 6])
    task = np.asarray([0, 0, 1, 2, 2])[rollout]
    segment = np.repeat(np.arange(8), 2)
    mask = rng.random(16) < 0.7
    order = rng.permutation(16)
    renamed = rng.permutation(5)
    for mode in aggregation.MODES:
      one = aggregation.weights(
          mask, segment=segment, rollout=rollout, task=task, mode=mode
      )
      two = aggregation.weights(
          mask[order], segment=segment[order], rollout=renamed[rollout][order],
          task=task[order], mode=mode,
      )
      np.testing.assert_allclose(two, one[order], rtol=1e-6)

  @parameterized.parameters(*aggregation.MODES)
  def test_L9_no_token_at_all(self, mode):
    none = np.zeros(4, np.int64)
    weight = aggregation.weights(
        none > 0, segment=none, rollout=none, task=none, mode=mode
    )
    np.testing.assert_array_equal(weight, 0.0)

  def test_unknown_mode_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'loss.aggregation'):
      one = np.zeros(1, np.int64)
      aggregation.weights(
          one == 0, segment=one, rollout=one, task=one, mode='mean'
      )


class OverflowTest(parameterized.TestCase):

  @parameterized.parameters(
      # d = log ref - log pi; slope is d k3 / d log pi.
      (0.1, 0.0051709181, -0.1051709181),
      (-0.1, 0.0048374180, 0.0951625820),
      (-100.0, 99.0, 1.0),
  )
  def test_K18a_k3(self, d, expected, slope):
    got, gradient = jax.value_and_grad(
        lambda x: kl.estimate(x, estimator='k3')
    )(jnp.float32(-d))
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4)

  def test_K18a_k3_beyond_float32_is_finite(self):
    got, gradient = jax.value_and_grad(
        lambda x: kl.estimate(x, estimator='k3')
    )(jnp.float32(-100.0))
    # e^20 - 1 - 100, and the exp has no slope beyond 20.
    np.testing.assert_allclose(got, 485165195.41 - 101.0, rtol=1e-6)
    np.testing.assert_allclose(gradient, 1.0)

  @parameterized.parameters((0.0, 0.0), (1.0, -1.2), (-1.0, 485165195.41))
  def test_K18b_ratio_of_a_log_ratio_of_100(self, advantage, loss):
    def term(logp):
      terms = policy.clipped_loss(
          logp, jnp.zeros((1, 1)), jnp.full((1, 1), advantage),
          np.ones((1, 1), bool), clip=schema.ClipConfig(),
      )
      return terms.loss_BT.sum()

    got, gradient = jax.value_and_grad(term)(jnp.full((1, 1), 100.0))
    np.testing.assert_allclose(got, loss, rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0.0)

  def test_L21_saturated_ratios_are_counted(self):
    batch = minibatch([[0.25] * 4], base_logp_BT=[[0.0, 0.0, 0.0, 0.0]])
    logp_BT = jnp.asarray([[25.0, -25.0, 19.9, 0.0]])
    _, stats = objective.actor_terms(
        logp_BT, jnp.zeros((1, 4)), batch, clip=schema.ClipConfig(), kl=NO_KL,
        entropy_coef=0.0,
    )
    self.assertEqual(objective.stat_values(stats)['ratio_saturated_count'], 2)

  @parameterized.parameters(-20.0, -3.0, 0.0, 20.0)
  def test_bounded_exp_is_exp_inside(self, x):
    got, slope = jax.value_and_grad(ratio.bounded_exp)(jnp.float32(x))
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(slope, np.exp(x), rtol=1e-6)

  def test_unknown_kl_estimator_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'kl.estimator'):
      kl.estimate(jnp.zeros(()), estimator='k4')


class ClipTest(parameterized.TestCase):

  @parameterized.parameters(
      # ratio, advantage -> loss, gradient by log pi (eps 0.2 / 0.28).
      (1.5, 1.0, -1.28, 0.0),  # above the ceiling, A > 0: clipped.
      (1.2, 1.0, -1.2, -1.2),
      (0.5, 1.0, -0.5, -0.5),  # below the floor, A > 0: not clipped.
      (0.5, -1.0, 0.8, 0.0),  # below the floor, A < 0: clipped.
      (1.5, -1.0, 1.5, 1.5),  # above the ceiling, A < 0: not clipped.
  )
  def test_L2_four_corners(self, rho, advantage, loss, slope):
    def term(logp):
      return policy.clipped_loss(
          logp, jnp.zeros((1, 1)), jnp.full((1, 1), advantage),
          np.ones((1, 1), bool), clip=schema.ClipConfig(0.2, 0.28),
      ).loss_BT.sum()

    got, gradient = jax.value_and_grad(term)(jnp.full((1, 1), np.log(rho)))
    np.testing.assert_allclose(got, loss, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[slope]], rtol=1e-6)

  def test_L3_dual_clip_bounds_a_large_ratio(self):
    # rho = 10, A = -1: max(10, 1.2) = 10, bounded by 3 * 1; no gradient.
    def term(logp):
      return policy.clipped_loss(
          logp, jnp.zeros((1, 1)), -jnp.ones((1, 1)), np.ones((1, 1), bool),
          clip=schema.ClipConfig(dual=3.0),
      ).loss_BT.sum()

    got, gradient = jax.value_and_grad(term)(jnp.full((1, 1), np.log(10.0)))
    np.testing.assert_allclose(got, 3.0, rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0.0)

  def test_L2_no_gradient_flows_into_base_or_advantage(self):
    ones = np.ones((1, 2), bool)
    total = lambda base, advantage: policy.clipped_loss(
        jnp.zeros((1, 2)), base, advantage, ones, clip=schema.ClipConfig()
    ).loss_BT.sum()
    for gradient in jax.grad(total, (0, 1))(jnp.zeros((1, 2)), jnp.ones((1, 2))):
      np.testing.assert_array_equal(gradient, 0.0)

  def test_L4_rounding_inside_the_bound_does_not_clip(self):
    # v_old + (v - v_old) differs from v by rounding for these numbers.
    old = jnp.full((1, 1), 1e4, jnp.float32)
    now = jnp.full((1, 1), 1e4 + 0.1, jnp.float32)
    terms = value.value_loss(
        now, old, jnp.zeros((1, 1)), np.ones((1, 1), bool), value_clip=0.2
    )
    self.assertFalse(bool(terms.clipped_BT[0, 0]))
    np.testing.assert_allclose(terms.loss_BT, 0.5 * now**2)

  def test_L5_entropy_bonus_lowers_the_loss(self):
    batch = minibatch([[0.5, 0.5]])
    loss, stats = objective.actor_terms(
        jnp.zeros((1, 2)), jnp.asarray([[1.0, 3.0]]), batch,
        clip=schema.ClipConfig(), kl=NO_KL, entropy_coef=0.1,
    )
    # -0.1 * (0.5 * 1 + 0.5 * 3).
    np.testing.assert_allclose(loss, -0.2, rtol=1e-6)
    self.assertAlmostEqual(objective.stat_values(stats)['entropy'], 2.0)


class StatsTest(absltest.TestCase):

  def test_merged_halves_are_the_whole(self):
    logp_BT = jnp.asarray([[-1.0, -0.2, -3.0, -0.5]])
    columns = {
        'base_logp_BT': jnp.asarray([[-1.2, -0.9, -2.0, -0.5]]),
        'advantage_BT': jnp.asarray([[1.0, -2.0, 0.5, 3.0]]),
    }
    stats = []
    for weight in ([0.25] * 4, [0.25, 0.25, 0, 0], [0, 0, 0.25, 0.25]):
      stats.append(objective.actor_terms(
          logp_BT, -logp_BT, minibatch([weight], **columns),
          clip=schema.ClipConfig(), kl=NO_KL, entropy_coef=0.0,
      )[1])
    whole = objective.stat_values(stats[0])
    merged = objective.stat_values(objective.merge_stats(*stats[1:]))
    self.assertEqual(whole.keys(), merged.keys())
    for name, number in whole.items():
      np.testing.assert_allclose(merged[name], number, rtol=1e-6, err_msg=name)


if __name__ == '__main__':
  absltest.main()
