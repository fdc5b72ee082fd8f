"""K16, K18c, K27, L18: steps that are taken, and steps that are not."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import optimizers


def _step(optimizer, params, state, gradients, weight=1.0, **options):
  return jax.jit(
      lambda p, s, g: optimizers.apply_gradients(
          optimizer, p, s, g, jnp.float32(weight), **options
      )
  )(params, state, gradients)


class OptimizersTest(parameterized.TestCase):

  def test_K27_moments_and_count_carry_over(self):
    config = schema.OptimizerConfig(
        learning_rate=0.1, b1=0.9, b2=0.999, eps=1e-8, clip_norm=None
    )
    optimizer = optimizers.make_optimizer(config)
    params = {'w': jnp.float32(1.0)}
    state = optimizer.init(params)
    params, state, _ = _step(optimizer, params, state, {'w': jnp.float32(1.0)})
    np.testing.assert_allclose(params['w'], 0.900000001, rtol=1e-5)
    params, _, _ = _step(optimizer, params, state, {'w': jnp.float32(-0.5)})
    np.testing.assert_allclose(params['w'], 0.8733662974, rtol=1e-5)

  @parameterized.parameters(float('nan'), float('inf'))
  def test_K18c_L18_a_nonfinite_gradient_changes_nothing(self, bad):
    optimizer = optimizers.make_optimizer(schema.OptimizerConfig())
    params = {'w': jnp.float32([1.0, 2.0])}
    state = optimizer.init(params)
    gradients = {'w': jnp.float32([0.5, bad])}
    after, state_after, report = _step(optimizer, params, state, gradients)
    self.assertFalse(bool(report.finite))
    np.testing.assert_array_equal(after['w'], params['w'])
    for new, old in zip(jax.tree.leaves(state_after), jax.tree.leaves(state)):
      np.testing.assert_array_equal(new, old)

  def test_L18_the_parameters_whose_gradient_is_not_finite_are_told(self):
    optimizer = optimizers.make_optimizer(schema.OptimizerConfig())
    params = {'a': jnp.zeros(2), 'b': {'c': jnp.zeros(1), 'd': jnp.zeros(1)}}
    gradients = {
        'a': jnp.float32([1.0, jnp.nan]),
        # Each is finite, and its square is not: no norm, hence no step.
        'b': {'c': jnp.float32([1e30]), 'd': jnp.float32([1.0])},
    }
    _, _, report = _step(optimizer, params, optimizer.init(params), gradients)
    self.assertFalse(report.finite)
    self.assertEqual(
        jax.tree.map(bool, report.nonfinite),
        {'a': True, 'b': {'c': True, 'd': False}},
    )

  def test_K16_a_step_without_a_trained_token_changes_nothing(self):
    config = schema.OptimizerConfig(weight_decay=0.5, learning_rate=0.1)
    optimizer = optimizers.make_optimizer(config)
    params = {'w': jnp.float32([1.0, 2.0])}
    state = optimizer.init(params)
    zeros = {'w': jnp.zeros(2)}
    after, _, report = _step(optimizer, params, state, zeros, weight=0.0)
    self.assertTrue(bool(report.empty))
    np.testing.assert_array_equal(after['w'], params['w'])
    # With a trained token the same zero gradient does decay the weights.
    after, _, _ = _step(optimizer, params, state, zeros, weight=1.0)
    np.testing.assert_allclose(after['w'], [0.95, 1.9], rtol=1e-6)

  def test_the_global_norm_is_clipped_and_reported_before_clipping(self):
    config = schema.OptimizerConfig(clip_norm=1.0)
    optimizer = optimizers.make_optimizer(config)
    params = {'w': jnp.zeros(2)}
    gradients = {'w': jnp.float32([30.0, 40.0])}
    _, _, report = _step(optimizer, params, optimizer.init(params), gradients)
    self.assertAlmostEqual(float(report.gradient_norm), 50.0, places=4)

  @parameterized.parameters((1.0, True), (60.0, False), (None, False))
  def test_L21_a_clipped_step_is_reported(self, limit, clipped):
    config = schema.OptimizerConfig(clip_norm=limit)
    optimizer = optimizers.make_optimizer(config)
    params = {'w': jnp.zeros(2)}
    _, _, report = _step(
        optimizer, params, optimizer.init(params),
        {'w': jnp.float32([30.0, 40.0])}, clip_norm=limit,
    )
    self.assertEqual(bool(report.clipped), clipped)

  def test_L21_gradient_elements_that_devices_flush_are_counted(self):
    # The smallest normal float32 is 1.18e-38; 0 itself is none of them.
    optimizer = optimizers.make_optimizer(schema.OptimizerConfig())
    params = {'w': jnp.zeros(5), 'b': jnp.zeros(())}
    gradients = {
        'w': np.float32([1e-39, -1e-40, 0.0, 1.2e-38, 1.0]),
        'b': np.float32(1e-45),
    }
    _, _, report = _step(optimizer, params, optimizer.init(params), gradients)
    self.assertEqual(float(report.flushed), 3)

  def test_L18_a_loss_that_is_not_finite_takes_no_step(self):
    optimizer = optimizers.make_optimizer(schema.OptimizerConfig())
    params = {'w': jnp.float32([1.0, 2.0])}
    after, _, report = _step(
        optimizer, params, optimizer.init(params), {'w': jnp.ones(2)},
        loss=jnp.float32(np.nan),
    )
    self.assertFalse(bool(report.finite))
    np.testing.assert_array_equal(after['w'], params['w'])

  def test_K27b_warm_up_starts_moving_at_the_first_step(self):
    schedule = optimizers.make_schedule(
        schema.OptimizerConfig(learning_rate=1e-3, warmup_steps=10)
    )
    np.testing.assert_allclose(
        [schedule(n) for n in (0, 5, 6, 9, 30)],
        [1e-4, 6e-4, 7e-4, 1e-3, 1e-3],
        rtol=1e-5,
    )

  @parameterized.parameters(
      # Half way: linear (1 + 0.1) / 2; cosine 0.1 + 0.9 * 0.5.
      ('linear', 0.55),
      ('cosine', 0.55),
  )
  def test_decay_ends_at_its_fraction(self, kind, half):
    schedule = optimizers.make_schedule(
        schema.OptimizerConfig(
            learning_rate=1.0, schedule=kind, decay_steps=100, end_fraction=0.1
        )
    )
    np.testing.assert_allclose(
        [schedule(0), schedule(50), schedule(100), schedule(500)],
        [1.0, half, 0.1, 0.1],
        rtol=1e-5,
    )


if __name__ == '__main__':
  absltest.main()
