"""G8, L6, L9, K18: KL to the reference per token."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import kl
from rl_tpu.types import token_types
from tests import golden_io
from tests.losses import cases

CASES = cases.load()


@jax.jit
def all_terms(logp_BT, reference_BT, behaviour_BT, mask_BT):
  """Loss and gradient by name: k1, k2, k3, with and without importance."""
  out = {}
  for name in kl.ESTIMATORS:
    for importance in (False, True):
      def total(logp_BT, name=name, importance=importance):
        loss_BT = kl.kl_loss(
            logp_BT, reference_BT, behaviour_BT, mask_BT,
            estimator=name, importance=importance,
        )
        return jnp.sum(loss_BT), loss_BT

      (_, loss_BT), gradient_BT = jax.value_and_grad(total, has_aux=True)(
          logp_BT
      )
      out[name + '_importance' * importance] = loss_BT, gradient_BT
  return out


def run(logp, reference, behaviour=None, mask=None):
  """One row of tokens, as numpy rows by name."""
  row = lambda x: np.asarray([x], np.float32)
  behaviour = logp if behaviour is None else behaviour
  mask = [True] * len(logp) if mask is None else mask
  out = all_terms(
      row(logp), row(reference), row(behaviour), np.asarray([mask], bool)
  )
  return jax.tree.map(lambda x: np.asarray(x)[0], out)


class KlTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L6_golden(self, case):
    found = all_terms(
        case['logp'], case['logp_ref'], case['logp_behavior'], case.mask_BT
    )
    for name, arrays in found.items():
      for suffix, array_BT in zip(('', '_grad'), arrays):
        actual = case.trained(array_BT)
        expected = case.per_token(name + suffix)
        golden_io.assert_close(actual, expected, name=name + suffix)
        small = np.abs(expected) < 100.0
        golden_io.assert_close(
            actual[small], expected[small], name=name + suffix
        )
        np.testing.assert_array_equal(array_BT[~case.mask_BT], 0.0)

  @parameterized.named_parameters(*CASES)
  def test_G8_golden_penalty_on_the_reward(self, case):
    penalty_BT = kl.reward_penalty(
        case['logp_old'], case['logp_ref'], coef=case.config['kl_coef']
    )
    golden_io.assert_close(
        -case.trained(penalty_BT), case.per_token('kl_reward')
    )

  def test_L6_by_hand(self):
    # x = ln 2: k1 .6931, k2 .2402, k3 = 1/2 - 1 + .6931; slopes 1, x, 1/2.
    found = run([np.log(0.5)], [np.log(0.25)])
    for name, loss, slope in (
        ('k1', 0.69314718, 1.0),
        ('k2', 0.24022651, 0.69314718),
        ('k3', 0.19314718, 0.5),
    ):
      np.testing.assert_allclose(found[name], [[loss], [slope]], rtol=1e-6)

  def test_L6_k3_of_small_differences(self):
    # x^2/2 - x^3/6 + ...; exp(-x) - 1 + x in float32 is off by some 10 %.
    found = run([1e-3, -1e-3], [0.0, 0.0])
    np.testing.assert_allclose(
        found['k3'][0], [4.998333750e-7, 5.001667084e-7], rtol=1e-3
    )

  def test_L6_importance_by_hand(self):
    # rho = .5/.25 = 2 and x = ln 2: 2k; slope 2 (k + dk).
    found = run([np.log(0.5)], [np.log(0.25)], [np.log(0.25)])
    for name, k, dk in (
        ('k1', 0.69314718, 1.0),
        ('k2', 0.24022651, 0.69314718),
        ('k3', 0.19314718, 0.5),
    ):
      np.testing.assert_allclose(
          found[f'{name}_importance'], [[2 * k], [2 * (k + dk)]], rtol=1e-6
      )

  def test_L6_importance_beyond_saturation_has_the_slope_of_k_alone(self):
    # rho stops at e^20 and is constant there: d = rho * dk, with x = 1.
    found = run([-1.0], [-2.0], [-31.0])
    rho = np.exp(20.0)
    np.testing.assert_allclose(
        found['k2_importance'], [[0.5 * rho], [rho]], rtol=1e-5
    )

  def test_K18_a_k3_of_large_differences(self):
    # d = logp_ref - logp: .1, -.1, -100, 100.
    found = run([0.0] * 4, [0.1, -0.1, -100.0, 100.0])
    loss, slope = found['k3']
    np.testing.assert_allclose(
        loss[:3], [0.0051709181, 0.0048374180, 99.0], rtol=1e-4
    )
    np.testing.assert_allclose(
        slope[:3], [-0.1051709181, 0.0951625820, 1.0], rtol=1e-5
    )
    self.assertTrue(np.isfinite([loss[3], slope[3]]).all())

  def test_L6_mean_gradients_are_those_of_the_two_kls(self):
    # Exact means over four actions drawn from p = softmax(z).
    z = jnp.asarray([0.3, -0.8, 1.1, 0.0])
    reference = jax.nn.log_softmax(jnp.asarray([1.0, 0.2, -0.5, 0.4]))

    def mean_gradient(name):
      def mean(z, drawn):
        logp = jax.nn.log_softmax(z)
        term = kl.kl_loss(
            logp[None], reference[None], logp[None], jnp.ones((1, 4), bool),
            estimator=name, importance=False,
        )
        return jnp.sum(jax.lax.stop_gradient(drawn) * term[0])

      return jax.grad(mean)(z, jax.nn.softmax(z))

    p, q = jax.nn.softmax(z), jnp.exp(reference)
    kl_theta_ref = jax.grad(
        lambda z: jnp.sum(
            jax.nn.softmax(z) * (jax.nn.log_softmax(z) - reference)
        )
    )(z)
    np.testing.assert_allclose(mean_gradient('k2'), kl_theta_ref, atol=1e-6)
    np.testing.assert_allclose(mean_gradient('k3'), p - q, atol=1e-6)
    np.testing.assert_allclose(mean_gradient('k1'), np.zeros(4), atol=1e-6)

  @parameterized.parameters(0.0, 1e30, np.inf, -np.inf, np.nan)
  def test_L9_masked_places_are_inert(self, junk):
    found = run(
        [-1.0, junk], [-1.5, junk], [-1.0, junk], mask=[True, False]
    )
    for name, (loss, slope) in found.items():
      self.assertTrue(np.isfinite([loss, slope]).all(), name)
      self.assertEqual((loss[1], slope[1]), (0.0, 0.0), name)

  def test_L6_no_gradient_into_reference_and_behaviour(self):
    def total(reference_BT, behaviour_BT):
      return jnp.sum(
          kl.kl_loss(
              jnp.asarray([[-1.0]]), reference_BT, behaviour_BT,
              jnp.asarray([[True]]), estimator='k2', importance=True,
          )
      )

    gradients = jax.grad(total, (0, 1))(
        jnp.asarray([[-2.0]]), jnp.asarray([[-1.2]])
    )
    np.testing.assert_array_equal(np.asarray(gradients).ravel(), 0.0)

  @parameterized.parameters(
      (0, 0.1), (10, 0.1), (20, 0.2), (30, 0.3), (31, 0.02), (1000, 0.02)
  )
  def test_L6_schedule_by_stage(self, update, expected):
    # Constant up to 10, a line to 30, and from there another stage.
    points = ((10, 0.1), (30, 0.3), (30, 0.3), (31, 0.02))
    self.assertAlmostEqual(kl.scheduled(points, update), expected, places=9)

  def test_L6_of_two_points_at_one_update_the_later_holds(self):
    points = ((0, 0.4), (5, 0.4), (5, 0.0))
    self.assertEqual(
        [kl.scheduled(points, n) for n in (0, 4, 5, 6)], [0.4, 0.4, 0.0, 0.0]
    )
    self.assertEqual(kl.scheduled(0.25, 7), 0.25)

  def test_L6_coefficients_by_token_type(self):
    settings = schema.KlConfig(
        'loss', coef=((0, 0.0), (4, 0.4)), by_type={'stop': 0.5, 'summary': 0}
    )
    found = dict(zip(token_types.NAMES, kl.coefficients(settings, 2)))
    self.assertAlmostEqual(found['text'], 0.2, places=6)
    self.assertAlmostEqual(found['stop'], 0.1, places=6)
    self.assertEqual(found['summary'], 0.0)

  def test_unknown_estimator_is_refused(self):
    with self.assertRaisesRegex(ValueError, "kl.estimator.*'k4'"):
      kl.estimate(jnp.zeros((1, 1)), estimator='k4')


if __name__ == '__main__':
  absltest.main()
