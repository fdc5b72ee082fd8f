"""Blocked attention against the plain square, forward and backward."""

import functools
import math

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import attention
from rl_tpu.models import splash


def plain(query, key, value, segment, scalar=None, softcap=None, window=None):
  """One softmax over a full masked row."""
  shared = query.shape[2] // key.shape[2]
  key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
  score = jnp.einsum('bqhk,bshk->bhqs', query, key)
  score = score / math.sqrt(scalar or query.shape[-1])
  if softcap is not None:
    score = softcap * jnp.tanh(score / softcap)
  time = jnp.arange(query.shape[1])
  ago = time[:, None] - time
  near = ago < (window or query.shape[1])
  seen = (ago >= 0) & near & (segment[:, :, None] == segment[:, None])
  weight = jax.nn.softmax(jnp.where(seen[:, None], score, -jnp.inf), axis=-1)
  return jnp.einsum('bhqs,bshk->bqhk', weight, value)


def inputs(length: int, heads: int, groups: int):
  keys = jax.random.split(jax.random.key(length), 4)
  draw = lambda key, count: jax.random.normal(key, (2, length, count, 8))
  segment = np.full((2, length), -1, np.int32)
  segment[0, : length // 3] = 0
  segment[0, length // 3 :] = 1
  segment[1, : length - 2] = 2
  return (
      draw(keys[0], heads),
      draw(keys[1], groups),
      draw(keys[2], groups),
      jnp.asarray(segment),
      draw(keys[3], heads),
  )


class AttentionTest(parameterized.TestCase):

  @parameterized.parameters(
      (5, 2, 2, {}),
      (128, 2, 1, {}),
      (300, 4, 2, {}),
      (300, 4, 2, dict(scalar=3.0, softcap=0.7, window=20)),
      (9, 2, 2, dict(softcap=0.5, window=1)),
  )
  def test_equals_the_plain_square_with_its_gradients(
      self, length, H, G, settings
  ):
    self.check(attention.packed, length, H, G, settings)

  @parameterized.parameters(
      (128, 2, 1, {}),
      (256, 4, 2, dict(scalar=3.0, softcap=0.7, window=20)),
  )
  def test_splash_equals_the_plain_square_with_its_gradients(
      self, length, H, G, settings
  ):
    kernel = functools.partial(splash.packed, interpret=True)
    self.check(kernel, length, H, G, settings)

  def check(self, function, length, H, G, settings):
    query, key, value, segment, direction = inputs(length, H, G)

    def through(function):
      out, pull = jax.vjp(
          lambda q, k, v: function(q, k, v, segment, **settings),
          *(query, key, value),
      )
      return out, *pull(direction)

    for found, expected in zip(through(function), through(plain)):
      np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-4)

  def test_splash_refuses_rows_that_its_blocks_do_not_divide(self):
    arrays = inputs(100, 2, 2)[:4]
    with self.assertRaisesRegex(ValueError, 'batching.row_length'):
      splash.packed(*arrays, interpret=True)

  def test_K42_scores_are_divided_by_the_root_of_the_head_width(self):
    # Two keys with scores s and 0: the weight of the first is 1/(1 + e^-s).
    # A query and key with product 1 and width 128: s = 1/sqrt(128).
    one = jnp.zeros((1, 2, 1, 128)).at[..., 0].set(1.0)
    key = one.at[0, 1].set(0.0)
    value = one.at[0, 1].set(0.0)
    out = attention.packed(one, key, value, jnp.zeros((1, 2), jnp.int32))
    weight = float(out[0, 1, 0, 0])
    self.assertAlmostEqual(
        math.log(weight / (1 - weight)), 0.0883883476, places=6
    )

  @parameterized.parameters(None, 2.0)
  def test_far_apart_scores_stay_finite(self, softcap):
    query, key, value, segment, direction = inputs(140, 2, 2)
    out, pull = jax.vjp(
        lambda q: attention.packed(q, key, value, segment, softcap=softcap),
        query * 1e4,
    )
    self.assertTrue(np.all(np.isfinite(out)))
    self.assertTrue(np.all(np.isfinite(pull(direction)[0])))


if __name__ == '__main__':
  absltest.main()
