"""L9, L14, L15, L21, K18: DIS, CISPO and GSPO per token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.losses import by_id
from rl_tpu.losses import policy
from tests import golden_io
from tests.losses import cases

CASES = cases.load()
JUNK = (0.0, 1e30, np.inf, -np.inf, np.nan)


@functools.partial(jax.jit, static_argnames='kind')
def _run(kind, logp_BT, base_BT, advantage_BT, mask_BT, bounds):
  def total(logp_BT):
    if kind == 'dis':
      terms = policy.dis_loss(
          logp_BT, base_BT, advantage_BT, mask_BT,
          dis=schema.DisConfig(*bounds),
      )
    else:
      terms = policy.cispo_loss(
          logp_BT, base_BT, advantage_BT, mask_BT,
          cispo=schema.CispoConfig(*bounds),
      )
    return jnp.sum(terms.loss_BT), terms

  (_, terms), gradient_BT = jax.value_and_grad(total, has_aux=True)(logp_BT)
  return terms, gradient_BT


def run(kind, logp, base, advantage, mask=None, *, bounds):
  """One row of tokens; terms and gradient as numpy rows."""
  row = lambda x: np.asarray([x], np.float32)
  mask = [True] * len(logp) if mask is None else mask
  terms, gradient_BT = _run(
      kind, row(logp), row(base), row(advantage), np.asarray([mask], bool),
      bounds,
  )
  terms = jax.tree.map(lambda x: np.asarray(x)[0], terms)
  return terms, np.asarray(gradient_BT)[0]


@jax.jit
def gspo(logp_BT, case_arrays, origin, weight_BT, bounds):
  """The weighted GSPO loss in one pass, differentiated through the mean."""
  base_BT, advantage_BT, mask_BT, segment_BT = case_arrays
  size = origin.rollout_N.shape[0]
  of_rollouts = lambda value_BT: by_id.rollout_sum(
      by_id.segment_sum(value_BT, mask_BT, segment_BT, size=size), origin
  )

  def total(logp_BT):
    x_BT = jnp.where(mask_BT, logp_BT, 0.0) - jnp.where(mask_BT, base_BT, 0.0)
    mean_R = by_id.mean(of_rollouts(x_BT), of_rollouts(jnp.ones_like(x_BT)))
    mean_BT = by_id.at_tokens(by_id.at_segments(mean_R, origin), segment_BT)
    terms = policy.gspo_loss(
        mean_BT, advantage_BT, mask_BT, gspo=schema.GspoConfig(*bounds)
    )
    return jnp.sum(terms.loss_BT * weight_BT), terms

  (loss, terms), gradient_BT = jax.value_and_grad(total, has_aux=True)(logp_BT)
  return loss, terms, gradient_BT


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L14_dis(self, case):
    terms, gradient_BT = _run(
        'dis', case['logp'], case['logp_behavior'], case['advantage'],
        case.mask_BT, (case.config['dis_low'], case.config['dis_high']),
    )
    for name, array_BT in (('dis', terms.loss_BT), ('dis_grad', gradient_BT)):
      golden_io.assert_close(
          case.trained(array_BT), case.per_token(name), name=name
      )
      np.testing.assert_array_equal(np.asarray(array_BT)[~case.mask_BT], 0.0)
    gated = case.trained(terms.gated_BT)
    np.testing.assert_array_equal(gated, case.per_token('dis_keep') == 0)
    # Out of range is no gradient at all, not a small one.
    np.testing.assert_array_equal(case.trained(gradient_BT)[gated], 0.0)
    golden_io.assert_close(
        gated.mean(), case.expected['metrics']['dis_reject_fraction']
    )

  @parameterized.named_parameters(*CASES)
  def test_L15_gspo_in_one_pass(self, case):
    arrays = (
        case['logp_old'], case['advantage'], case.mask_BT, case.segment_BT
    )
    bounds = case.config['gspo_low'], case.config['gspo_high']
    for mode in aggregation.MODES:
      expected = case.expected['aggregate'][mode]
      weight_BT = aggregation.weights(
          case.mask_BT, segment=case.segment_BT, rollout=case.rollout_BT,
          task=case.task_BT, mode=mode, constant=case.config['loss_constant'],
      )
      loss, terms, gradient_BT = gspo(
          case['logp'], arrays, case.origin(), weight_BT, bounds
      )
      golden_io.assert_close(loss, expected['gspo'], name=mode)
      want = np.asarray(expected['gspo_grad_logp'])[case.trained_places()]
      golden_io.assert_close(case.trained(gradient_BT), want, name=mode)
    clipped = case.trained(terms.clip_high_BT | terms.clip_low_BT)
    np.testing.assert_array_equal(clipped, case.per_token('gspo_clipped') != 0)
    for name, array_BT in (
        ('gspo', terms.loss_BT), ('gspo_ratio', terms.ratio_BT)
    ):
      golden_io.assert_close(
          case.trained(array_BT), case.per_token(name), name=name
      )


class DisTest(parameterized.TestCase):

  def test_L14_by_hand(self):
    # Range (0.2, 4): ratios 0.1, 0.5, 3.9, 4.1; -f A with A = 2, -1, -1, 2.
    ratio = np.asarray([0.1, 0.5, 3.9, 4.1])
    terms, gradient = run(
        'dis', np.log(ratio), [0.0] * 4, [2.0, -1.0, -1.0, 2.0],
        bounds=(0.8, 3.0),
    )
    np.testing.assert_allclose(gradient, [0.0, 0.5, 3.9, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(terms.gated_BT, [1, 0, 0, 1])
    np.testing.assert_allclose(
        terms.loss_BT, [0, 0.5 * np.log(0.5), 3.9 * np.log(3.9), 0], rtol=1e-6
    )

  def test_L14_the_bounds_themselves_are_out_of_range(self):
    # 1 - 0.5 and 1 + 1 are exact in float32.
    gate = policy.dis_gate(
        jnp.asarray([0.5, 0.5000001, 1.9999999, 2.0]),
        dis=schema.DisConfig(0.5, 1.0),
    )
    np.testing.assert_array_equal(gate, [1, 0, 0, 1])

  def test_L14_a_log_probability_of_minus_infinity_is_gated(self):
    terms, gradient = run(
        'dis', [-np.inf, -1.0], [-1.0, -1.0], [1.0, 1.0], bounds=(0.8, 3.0)
    )
    np.testing.assert_array_equal(terms.gated_BT, [1, 0])
    np.testing.assert_allclose(terms.loss_BT, [0.0, 1.0])
    np.testing.assert_allclose(gradient, [0.0, -1.0])

  def test_L21_saturation_is_flagged(self):
    terms, _ = run(
        'dis', [0.0, 0.0], [-21.0, -1.0], [1.0, 1.0], bounds=(0.8, 3.0)
    )
    np.testing.assert_array_equal(terms.saturated_BT, [1, 0])


class CispoTest(parameterized.TestCase):

  def test_L14_cispo_by_hand(self):
    # Ceiling 1.5: ratios 0.5, 1.2, 3; slope -min(rho, 1.5) A, and no token is
    # without one.
    ratio = np.asarray([0.5, 1.2, 3.0])
    terms, gradient = run(
        'cispo', np.log(ratio), [0.0] * 3, [1.0, -2.0, 1.0], bounds=(0.5,)
    )
    np.testing.assert_allclose(gradient, [-0.5, 2.4, -1.5], rtol=1e-6)
    np.testing.assert_array_equal(terms.clip_high_BT, [0, 0, 1])
    self.assertFalse(terms.gated_BT.any())
    np.testing.assert_allclose(terms.ratio_BT, ratio, rtol=1e-6)
    np.testing.assert_allclose(
        terms.loss_BT,
        [-0.5 * np.log(0.5), 2.4 * np.log(1.2), -1.5 * np.log(3.0)],
        rtol=1e-6,
    )


class MaskTest(parameterized.TestCase):

  @parameterized.product(kind=('dis', 'cispo'), junk=JUNK)
  def test_L9_masked_places_are_inert(self, kind, junk):
    bounds = (0.8, 3.0)[: 2 if kind == 'dis' else 1]
    terms, gradient = run(
        kind, [-1.0, junk], [-1.1, junk], [2.0, junk], [True, False],
        bounds=bounds,
    )
    for array in (*terms, gradient):
      self.assertTrue(np.isfinite(array).all())
    self.assertEqual((terms.loss_BT[1], gradient[1]), (0.0, 0.0))
    self.assertNotEqual(gradient[0], 0.0)

  @parameterized.parameters('dis', 'cispo')
  def test_K18_c_a_nan_on_a_trained_token_is_not_hidden(self, kind):
    bounds = (0.8, 3.0)[: 2 if kind == 'dis' else 1]
    terms, _ = run(kind, [np.nan], [-1.0], [1.0], bounds=bounds)
    self.assertTrue(np.isnan(terms.loss_BT[0]))
    self.assertFalse(terms.gated_BT[0])

  @parameterized.parameters('dis', 'cispo')
  def test_L14_no_gradient_but_through_log_pi(self, kind):
    def total(base_BT, advantage_BT):
      arguments = (jnp.asarray([[-1.0]]), base_BT, advantage_BT,
                   jnp.asarray([[True]]))
      if kind == 'dis':
        return jnp.sum(
            policy.dis_loss(*arguments, dis=schema.DisConfig()).loss_BT
        )
      return jnp.sum(
          policy.cispo_loss(*arguments, cispo=schema.CispoConfig()).loss_BT
      )

    gradients = jax.grad(total, (0, 1))(
        jnp.asarray([[-1.1]]), jnp.asarray([[2.0]])
    )
    np.testing.assert_array_equal(np.asarray(gradients).ravel(), 0.0)


if __name__ == '__main__':
  absltest.main()
