"""L1, L2, L3, L9, G15, L21, K03, K18: the clipped surrogate per token."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import policy
from tests import golden_io
from tests.losses import cases

CASES = cases.load()


@jax.jit
def terms_and_gradient(logp_BT, base_BT, advantage_BT, mask_BT, bounds):
  """Terms and d loss / d logp, clip bounds traced: (low, high, dual|None)."""
  clip = schema.ClipConfig(*bounds)

  def total(logp_BT):
    terms = policy.clipped_loss(
        logp_BT, base_BT, advantage_BT, mask_BT, clip=clip
    )
    return jnp.sum(terms.loss_BT), terms

  (_, terms), gradient_BT = jax.value_and_grad(total, has_aux=True)(logp_BT)
  return terms, gradient_BT


def run(logp, base, advantage, mask=None, *, low=0.2, high=0.2, dual=None):
  """One row of tokens; loss, gradient and terms as numpy rows."""
  row = lambda x: np.asarray([x], np.float32)
  mask = [True] * len(logp) if mask is None else mask
  terms, gradient_BT = terms_and_gradient(
      row(logp), row(base), row(advantage), np.asarray([mask], bool),
      (low, high, dual),
  )
  terms = jax.tree.map(lambda x: np.asarray(x)[0], terms)
  return terms, np.asarray(gradient_BT)[0]


class GoldenTest(parameterized.TestCase):

  def run_case(self, case, dual):
    config = case.config
    return terms_and_gradient(
        case['logp'],
        case['logp_old'],
        case['advantage'],
        case.mask_BT,
        (config['clip_low'], config['clip_high'], dual),
    )

  def check(self, case, actual_BT, name):
    actual, expected = case.trained(actual_BT), case.per_token(name)
    golden_io.assert_close(actual, expected, name=name)
    # Beside a saturated ratio of e^20 the others would pass with any error.
    small = np.abs(expected) < 100.0
    golden_io.assert_close(actual[small], expected[small], name=name)
    np.testing.assert_array_equal(
        np.asarray(actual_BT)[~case.mask_BT], 0.0, err_msg=name
    )

  def check_flag(self, case, actual_BT, name):
    np.testing.assert_array_equal(
        case.trained(actual_BT), case.per_token(name) != 0, err_msg=name
    )
    self.assertFalse(np.asarray(actual_BT)[~case.mask_BT].any(), name)

  @parameterized.named_parameters(*CASES)
  def test_L1_L2_ratio_loss_gradient_and_flags(self, case):
    terms, gradient_BT = self.run_case(case, None)
    golden_io.assert_close(
        case.trained(terms.ratio_BT), case.per_token('ratio'), name='ratio'
    )
    self.check(case, terms.loss_BT, 'ppo')
    self.check(case, gradient_BT, 'ppo_grad')
    clipped_BT = terms.clip_high_BT | terms.clip_low_BT
    self.check_flag(case, clipped_BT, 'ppo_clipped')
    self.assertFalse(np.asarray(terms.dual_BT).any())
    # Where the flag is up the gradient is 0 exactly, not nearly.
    np.testing.assert_array_equal(gradient_BT[clipped_BT], 0.0)

  @parameterized.named_parameters(*CASES)
  def test_L3_dual_clip(self, case):
    terms, gradient_BT = self.run_case(case, case.config['dual_clip'])
    self.check(case, terms.loss_BT, 'dual')
    self.check(case, gradient_BT, 'dual_grad')
    self.check_flag(case, terms.dual_BT, 'dual_active')
    np.testing.assert_array_equal(gradient_BT[terms.dual_BT], 0.0)

  @parameterized.named_parameters(*CASES)
  def test_L21_saturated_ratios(self, case):
    terms, _ = self.run_case(case, None)
    self.check_flag(case, terms.saturated_BT, 'ratio_saturated')


class PolicyTest(parameterized.TestCase):

  def test_L1_the_ratio_is_per_token(self):
    # Seed: .6/.5, .2/.25, .6/.5; the product 1.152 is another quantity.
    terms, _ = run(np.log([0.6, 0.2, 0.6]), np.log([0.5, 0.25, 0.5]), [1.0] * 3)
    np.testing.assert_allclose(terms.ratio_BT, [1.2, 0.8, 1.2], rtol=1e-6)

  def test_L2_bounds_by_hand(self):
    # A > 0: 1.3 is cut to 1.28, 0.5 is not cut. A < 0: 0.75 is cut to 0.8,
    # 1.5 is not cut.
    terms, gradient = run(
        np.log([1.3, 0.5, 0.75, 1.5]), [0.0] * 4, [1.0, 1.0, -1.0, -1.0],
        low=0.2, high=0.28,
    )
    np.testing.assert_allclose(
        terms.loss_BT, [-1.28, -0.5, 0.8, 1.5], rtol=1e-6
    )
    np.testing.assert_allclose(gradient, [0.0, -0.5, 0.0, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(terms.clip_high_BT, [1, 0, 0, 0])
    np.testing.assert_array_equal(terms.clip_low_BT, [0, 0, 1, 0])

  def test_L3_dual_bound_by_hand(self):
    # A = -2, c = 3: the loss is at most 6. 5 * 2 = 10 is cut, 2.5 * 2 is not.
    # A > 0 knows no such bound.
    terms, gradient = run(
        np.log([5.0, 2.5, 5.0]), [0.0] * 3, [-2.0, -2.0, 2.0], dual=3.0
    )
    np.testing.assert_allclose(terms.loss_BT, [6.0, 5.0, -2.4], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.0, 5.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(terms.dual_BT, [1, 0, 0])

  def test_K03_a_masked_advantages_stay_out(self):
    terms, _ = run([-1.0] * 4, [-1.0] * 4, [1, 1, 10, 10], [1, 1, 0, 0])
    self.assertAlmostEqual(float(terms.loss_BT.sum() / 2), -1.0, places=6)

  @parameterized.parameters(0.0, 1e30, np.inf, -np.inf, np.nan)
  def test_K03_b_L9_masked_places_are_inert(self, junk):
    terms, gradient = run(
        [-1.1, -1.9, junk, junk], [-1.0, -2.0, junk, junk],
        [0.5, -1.0, junk, junk], [1, 1, 0, 0],
    )
    # Token mean of two.
    self.assertAlmostEqual(
        float(terms.loss_BT.sum() / 2), 0.326376104528834, delta=1e-6
    )
    np.testing.assert_allclose(
        gradient / 2, [-0.226209354509, 0.552585459038, 0.0, 0.0], rtol=1e-5
    )
    for array in terms:
      self.assertTrue(np.isfinite(array).all())
    np.testing.assert_array_equal(terms.loss_BT[2:], 0.0)

  def test_K18_b_a_log_ratio_of_100(self):
    terms, gradient = run([0.0] * 3, [-100.0] * 3, [0.0, 1.0, -1.0])
    np.testing.assert_allclose(terms.loss_BT[:2], [0.0, -1.2], rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0.0)
    # A = -1: the ratio stops at e^20.
    self.assertAlmostEqual(terms.loss_BT[2] / np.exp(20.0), 1.0, places=5)
    np.testing.assert_array_equal(terms.saturated_BT, True)

  def test_L21_saturation_begins_beyond_20(self):
    terms, gradient = run([19.5, 20.0, 20.5, -20.5], [0.0] * 4, [-1.0] * 4)
    np.testing.assert_array_equal(terms.saturated_BT, [0, 0, 1, 1])
    self.assertGreater(gradient[:2].min(), 1e8)
    np.testing.assert_array_equal(gradient[2:], 0.0)

  def test_K18_c_a_nan_on_a_trained_token_is_not_hidden(self):
    terms, _ = run([np.nan, -1.0], [-1.0, -1.0], [1.0, 1.0])
    self.assertTrue(np.isnan(terms.loss_BT[0]))

  def test_no_gradient_into_baseline_and_advantage(self):
    def total(base_BT, advantage_BT):
      terms = policy.clipped_loss(
          jnp.asarray([[-1.0]]), base_BT, advantage_BT,
          jnp.asarray([[True]]), clip=schema.ClipConfig(),
      )
      return jnp.sum(terms.loss_BT)

    gradients = jax.grad(total, (0, 1))(
        jnp.asarray([[-1.1]]), jnp.asarray([[2.0]])
    )
    np.testing.assert_array_equal(np.asarray(gradients).ravel(), 0.0)

  def test_shapes_that_differ_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'advantage_BT has T=3'):
      policy.clipped_loss(
          jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.zeros((1, 3)),
          jnp.ones((1, 2), bool), clip=schema.ClipConfig(),
      )


if __name__ == '__main__':
  absltest.main()
