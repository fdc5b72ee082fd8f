"""L4, L9, G13, G15: the critic's loss per token."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.losses import value as value_lib
from tests import golden_io
from tests.losses import cases

CASES = cases.load()


@jax.jit
def terms_and_gradient(value_BT, old_BT, return_BT, mask_BT, value_clip):
  """Terms and d loss / d value; `value_clip` traced or None."""
  def total(value_BT):
    terms = value_lib.value_loss(
        value_BT, old_BT, return_BT, mask_BT, value_clip=value_clip
    )
    return jnp.sum(terms.loss_BT), terms

  (_, terms), gradient_BT = jax.value_and_grad(total, has_aux=True)(value_BT)
  return terms, gradient_BT


def run(value, old, target, mask=None, *, value_clip=None):
  """One row of tokens, as numpy rows."""
  row = lambda x: np.asarray([x], np.float32)
  mask = [True] * len(value) if mask is None else mask
  terms, gradient_BT = terms_and_gradient(
      row(value), row(old), row(target), np.asarray([mask], bool), value_clip
  )
  terms = jax.tree.map(lambda x: np.asarray(x)[0], terms)
  return terms, np.asarray(gradient_BT)[0]


class ValueTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L4_golden(self, case):
    arrays = case['value'], case['value_old'], case['return'], case.mask_BT
    terms, gradient_BT = terms_and_gradient(*arrays, case.config['value_clip'])
    for name, array in (
        ('value', terms.loss_BT),
        ('value_grad', gradient_BT),
        ('value_clipped', terms.clipped_BT),
    ):
      golden_io.assert_close(
          case.trained(array), case.per_token(name), name=name
      )
      np.testing.assert_array_equal(np.asarray(array)[~case.mask_BT], 0)
    np.testing.assert_array_equal(gradient_BT[terms.clipped_BT], 0.0)
    plain, _ = terms_and_gradient(*arrays, None)
    golden_io.assert_close(
        case.trained(plain.loss_BT), case.per_token('value_unclipped')
    )
    self.assertFalse(np.asarray(plain.clipped_BT).any())

  def test_L4_by_hand(self):
    # R = 0, old = 1, e = .2. v = 2 moves away from R: c = 1.2 is nearer, so
    # the larger (2)^2 stays. v = .5 moves towards R: c = .8, .32 > .125, cut.
    # v = .9 is within the bound.
    terms, gradient = run(
        [2.0, 0.5, 0.9], [1.0] * 3, [0.0] * 3, value_clip=0.2
    )
    np.testing.assert_allclose(terms.loss_BT, [2.0, 0.32, 0.405], rtol=1e-6)
    np.testing.assert_allclose(gradient, [2.0, 0.0, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(terms.clipped_BT, [0, 1, 0])

  def test_L4_half_is_part_of_the_definition(self):
    terms, gradient = run([3.0], [0.0], [1.0])
    np.testing.assert_array_equal(terms.loss_BT, [2.0])
    np.testing.assert_array_equal(gradient, [2.0])
    np.testing.assert_array_equal(terms.error_BT, [2.0])

  def test_L4_rounding_inside_the_bound_clips_nothing(self):
    # old + (v - old) differs from v in the last bit for many of these; the
    # gradient must be v - R all the same.
    rng = np.random.default_rng(0)
    old = rng.normal(0.0, 0.1, 8192).astype(np.float32)
    value = (old + rng.uniform(-0.19, 0.19, 8192)).astype(np.float32)
    target = rng.normal(0.0, 0.1, 8192).astype(np.float32)
    rounded = old + (value - old)
    is_larger = np.square(rounded - target) > np.square(value - target)
    self.assertGreater(is_larger.sum(), 10)
    terms, gradient = run(value, old, target, value_clip=0.2)
    self.assertFalse(terms.clipped_BT.any())
    np.testing.assert_array_equal(gradient, value - target)

  @parameterized.parameters(0.0, 1e30, np.inf, -np.inf, np.nan)
  def test_L9_masked_places_are_inert(self, junk):
    terms, gradient = run(
        [1.0, junk, junk], [0.0, junk, 0.0], [0.0, junk, junk], [1, 0, 0],
        value_clip=0.2,
    )
    np.testing.assert_array_equal(terms.loss_BT, [0.5, 0.0, 0.0])
    np.testing.assert_array_equal(gradient, [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(terms.clipped_BT, False)

  def test_G12_no_gradient_into_targets_and_old_values(self):
    def total(old_BT, return_BT):
      terms = value_lib.value_loss(
          jnp.asarray([[0.5, 2.0]]), old_BT, return_BT,
          jnp.ones((1, 2), bool), value_clip=0.2,
      )
      return jnp.sum(terms.loss_BT)

    gradients = jax.grad(total, (0, 1))(jnp.ones((1, 2)), jnp.zeros((1, 2)))
    np.testing.assert_array_equal(np.asarray(gradients).ravel(), 0.0)


if __name__ == '__main__':
  absltest.main()
