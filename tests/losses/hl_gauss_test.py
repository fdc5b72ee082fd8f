"""C11, L9, G15: the critic over bins of the return."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import hl_gauss

# Bins 0..1, 1..2, 2..3, 3..4; the Gaussian's deviation is 0.75.
CRITIC = schema.CriticConfig(head='hl_gauss', bins=4, vmin=0.0, vmax=4.0)


def normal_cdf(x: float) -> float:
  return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def by_hand(target: float) -> list[float]:
  """Mass of N(target, 0.75) in every bin, over the mass in all of them."""
  target = min(max(target, 0.0), 4.0)
  below = [normal_cdf((edge - target) / 0.75) for edge in range(5)]
  mass = [b - a for a, b in zip(below, below[1:])]
  return [m / sum(mass) for m in mass]


def loss(logits, target, mask=None):
  """Terms and gradient by the logits, of one row."""
  logits_BTM = jnp.asarray([logits], jnp.float32)
  mask = [True] * len(target) if mask is None else mask

  found = _loss(
      logits_BTM, jnp.asarray([target], jnp.float32), jnp.asarray([mask])
  )
  return jax.tree.map(lambda x: np.asarray(x)[0], found)


@jax.jit
def _loss(logits_BTM, target_BT, mask_BT):
  def total(logits_BTM):
    terms = hl_gauss.loss(
        logits_BTM, jnp.zeros_like(target_BT), target_BT, mask_BT,
        critic=CRITIC,
    )
    return jnp.sum(terms.loss_BT), terms

  (_, terms), gradient = jax.value_and_grad(total, has_aux=True)(logits_BTM)
  return terms, gradient


histogram = jax.jit(functools.partial(hl_gauss.histogram, critic=CRITIC))


class HlGaussTest(parameterized.TestCase):

  @parameterized.parameters(2.0, 0.3, 3.9)
  def test_C11_the_deviation_is_counted_in_bins(self, target):
    # All lengths an eighth of those by hand: bins of width 1/8 from 0 to 1/2.
    small = dataclasses.replace(CRITIC, vmax=0.5)
    found = hl_gauss.histogram(jnp.asarray([[target / 8.0]]), critic=small)
    np.testing.assert_allclose(found[0, 0], by_hand(target), atol=1e-6)

  @parameterized.parameters(2.0, 0.3, 3.9, 0.0, 4.0, -7.0, 11.0)
  def test_C11_histogram_by_hand(self, target):
    found = histogram(jnp.asarray([[target]]))
    np.testing.assert_allclose(found[0, 0], by_hand(target), atol=1e-6)

  def test_C11_a_target_in_the_middle_is_symmetric(self):
    # Within one deviation of 2: 2 * (Phi(4/3) - 1/2) = .8176 in the middle.
    found = histogram(jnp.asarray([[2.0]]))[0, 0]
    np.testing.assert_allclose(found[0], found[3], rtol=1e-5)
    np.testing.assert_allclose(
        found[1] + found[2], 0.81757 / 0.99230, atol=1e-4
    )

  def test_C11_cross_entropy_and_its_gradient(self):
    logits = [[0.1, -0.4, 0.8, 0.0]]
    terms, gradient = loss(logits, [1.4])
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    q = np.asarray(by_hand(1.4))
    np.testing.assert_allclose(terms.loss_BT, [-(q * np.log(p)).sum()], 1e-5)
    np.testing.assert_allclose(gradient[0], p - q, atol=1e-6)

  def test_C11_the_minimum_is_the_target(self):
    q = np.asarray(by_hand(2.7))
    _, gradient = loss([np.log(q)], [2.7])
    np.testing.assert_allclose(gradient[0], np.zeros(4), atol=1e-6)

  def test_C11_returns_outside_of_the_bins_are_counted(self):
    terms, _ = loss(np.zeros((3, 4)), [-0.1, 2.0, 4.5])
    np.testing.assert_array_equal(terms.clipped_BT, [1, 0, 1])
    np.testing.assert_allclose(terms.error_BT, [0.1, -2.0, -4.5], rtol=1e-6)

  @parameterized.parameters(np.nan, np.inf, -np.inf, 1e30)
  def test_G15_L9_masked_places_are_inert(self, junk):
    terms, gradient = loss(
        [np.zeros(4), np.full(4, junk)], [1.0, junk], [True, False]
    )
    for array in (*terms, gradient):
      self.assertTrue(np.isfinite(array).all())
    self.assertEqual(terms.loss_BT[1], 0.0)
    np.testing.assert_array_equal(gradient[1], np.zeros(4))
    self.assertNotEqual(terms.loss_BT[0], 0.0)

  def test_K18_c_a_nan_on_a_trained_token_is_not_hidden(self):
    terms, _ = loss([np.full(4, np.nan)], [1.0])
    self.assertTrue(np.isnan(terms.loss_BT[0]))

  def test_G12_no_gradient_into_the_target(self):
    def total(return_BT):
      terms = hl_gauss.loss(
          jnp.asarray([[[0.1, 0.5, -0.3, 0.2]]]), jnp.zeros((1, 1)), return_BT,
          jnp.ones((1, 1), bool), critic=CRITIC,
      )
      return jnp.sum(terms.loss_BT)

    np.testing.assert_array_equal(jax.grad(total)(jnp.asarray([[1.5]])), 0.0)


if __name__ == '__main__':
  absltest.main()
