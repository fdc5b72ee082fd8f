"""C10, C11, L4: frozen parameters, a shared backbone, a head over bins."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.checkpointing import store as store_lib
from rl_tpu.config import schema
from rl_tpu.learner import freezing
from rl_tpu.learner import networks
from rl_tpu.learner import state as state_lib
from rl_tpu.models import critic as critic_lib
from rl_tpu.models import decoder
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.types import batch as batch_lib
from tests import tiny
from tests.learner import small

ATTENTION = ('*/query/*', '*/key/*', '*/value/*', '*/out/*')
FROZEN = schema.CriticConfig(freeze=ATTENTION)
BINS = schema.CriticConfig(
    head='hl_gauss', bins=21, vmin=-2.0, vmax=2.0, head_bias=0.4
)
SHARED = dataclasses.replace(BINS, sharing='shared_backbone')
LOSS = schema.LossConfig(value_coef=0.25, entropy_coef=0.01)
HOST = tiny.host_part()
RETURN = 1.2


@functools.cache
def learner(critic: schema.CriticConfig):
  """One device; weight decay, which must reach no frozen parameter."""
  return small.learner(
      critic=critic, loss=LOSS,
      optimizer=schema.OptimizerConfig(learning_rate=1e-2, weight_decay=0.1),
  )


def with_slope(params):
  """The value head's kernel away from 0: the backbone gets a gradient."""
  head = params['value_head']
  noise = np.random.default_rng(0).normal(size=head['kernel'].shape)
  kernel = jax.device_put(
      (0.3 * noise).astype(np.float32), head['kernel'].sharding
  )
  return {**params, 'value_head': {**head, 'kernel': kernel}}


def part(made, built):
  """The batch as one microbatch; all targets are RETURN."""
  noise = np.random.default_rng(1).normal(size=built.policy_weight_BT.shape)
  noise = noise.astype(np.float32)
  zero_BT = np.zeros_like(noise)
  return made.place_rows(
      batch_lib.Minibatch(
          rows=built.segments.rows,
          advantage_BT=noise,
          return_BT=zero_BT + np.float32(RETURN),
          value_BT=zero_BT,
          base_logp_BT=built.segments.rows.behaviour_logp_BT,
          reference_logp_BT=zero_BT,
          policy_weight_BT=built.policy_weight_BT,
          critic_weight_BT=built.critic_weight_BT,
      )
  )


def leaves(tree) -> dict[str, np.ndarray]:
  """Arrays of a tree by name."""
  host = jax.device_get(tree)
  return dict(zip(freezing.names(host), jax.tree.leaves(host)))


class FreezeTest(parameterized.TestCase):

  def test_C10_frozen_parameters_stay_and_the_others_move(self):
    made = learner(FROZEN)
    state = made.init_state(small.params(), with_critic=True)
    critic = state.critic._replace(params=with_slope(state.critic.params))
    before = leaves(critic.params)
    built = small.batch()
    for _ in range(2):
      critic, _, report = made.update_critic(critic, [part(made, built)])
      self.assertTrue(report.finite)
    frozen = 0
    for name, after in leaves(critic.params).items():
      change = float(np.abs(after - before[name]).max())
      if any(f'/{k}/' in name for k in ('query', 'key', 'value', 'out')):
        self.assertEqual(change, 0.0, name)
        frozen += 1
      else:
        self.assertGreater(change, 1e-5, name)
    self.assertEqual(frozen, 4)

  def test_C10_the_setting_changes_the_compiled_gradient(self):
    built = small.batch()
    found = {}
    for critic in (schema.CriticConfig(), FROZEN):
      made = learner(critic)
      state = made.init_state(small.params(), with_critic=True)
      params = with_slope(state.critic.params)
      found[critic.freeze] = leaves(
          made.critic_gradient(params, [part(made, built)])
      )
    name = 'backbone/layers/query/kernel'
    self.assertGreater(np.abs(found[()][name]).max(), 1e-5)
    np.testing.assert_array_equal(found[ATTENTION][name], 0.0)
    # What is not frozen has the gradient it would have anyway.
    name = 'backbone/layers/gate/kernel'
    np.testing.assert_allclose(
        found[ATTENTION][name], found[()][name], rtol=1e-5, atol=1e-7
    )

  def test_C10_frozen_parameters_have_no_moments_and_are_restored(self):
    made = small.learner(8, critic=FROZEN)
    state = made.init_state(small.params(), with_critic=True)
    held = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(
            state.critic.optimizer
        )
    ]
    self.assertEmpty([name for name in held if "'query'" in name])
    self.assertNotEmpty([name for name in held if "'gate'" in name])
    store = store_lib.CheckpointStore(
        self.create_tempdir().full_path, schema.CheckpointConfig()
    )
    self.addCleanup(store.close)
    store.save(1, state.parts, HOST)
    got, _ = store.restore(1, state.parts)
    got = state.with_parts(got)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(state), strict=True):
      np.testing.assert_array_equal(a, b)

  @parameterized.parameters(
      (('*/querry/*',), 'querry.*backbone/layers/query/kernel'),
      (('*',), 'every parameter'),
  )
  def test_C10_patterns_that_freeze_nothing_or_everything(self, freeze, named):
    made = small.learner(critic=schema.CriticConfig(freeze=freeze))
    with self.assertRaisesRegex(ValueError, f'critic.freeze.*{named}'):
      made.init_state(small.params(), with_critic=True)


class SharedTest(parameterized.TestCase):

  def test_C10_L4_the_gradient_is_policy_plus_coefficient_times_value(self):
    built = small.batch()
    made = learner(SHARED)
    state = made.init_state(small.params(), with_critic=True)
    self.assertIsNone(state.critic)
    params = with_slope(state.actor.params)
    found = leaves(made.actor_gradient(params, [part(made, built)]))
    # The same numbers from two networks of their own.
    apart = learner(BINS)
    policy = leaves(
        apart.actor_gradient(
            networks.policy_params(params), [part(apart, built)]
        )
    )
    value = leaves(
        apart.critic_gradient(
            {'backbone': decoder.backbone(params),
             'value_head': params['value_head']},
            [part(apart, built)],
        )
    )
    for name, gradient in found.items():
      want = policy.get(name, 0.0)
      for key in (name, f'backbone/{name}'):
        want = want + 0.25 * value.get(key, 0.0)
      scale = float(np.abs(want).max())
      self.assertGreater(scale, 0.0, name)
      np.testing.assert_allclose(
          gradient, want, rtol=1e-4, atol=1e-5 * scale, err_msg=name
      )

  def test_C10_one_step_trains_both_heads_with_one_optimizer(self):
    made = learner(SHARED)
    state = made.init_state(small.params(), with_critic=True)
    before = leaves(state.actor.params)
    update = small.updater(made, critic=SHARED)
    state, report = small.step(update, state, small.batch())
    self.assertIsNone(state.critic)
    for name, after in leaves(state.actor.params).items():
      self.assertGreater(float(np.abs(after - before[name]).max()), 0.0, name)
    self.assertGreater(report.critic['loss'], 0.0)
    self.assertIn('policy_loss', report.actor)
    self.assertNotIn('critic/loss', report.actor)

  def test_C10_the_sampler_gets_the_policy_alone(self):
    state = learner(SHARED).init_state(
        small.params(), with_critic=True
    )
    shapes = decoder.shapes_of(small.MODEL)
    weights_lib.check_params(state.policy_params, shapes)
    with self.assertRaisesRegex(ValueError, 'value_head'):
      weights_lib.check_params(state.actor.params, shapes)

  def test_C10_scores_are_those_of_the_one_network(self):
    made = learner(SHARED)
    state = made.init_state(small.params(), with_critic=True)
    state = state_lib.TrainState(
        state.actor._replace(params=with_slope(state.actor.params)), None
    )
    built = small.batch()
    scored = small.updater(made, critic=SHARED).score(
        state, built.segments, built.minibatches
    )
    hidden_BTD = decoder.hidden(
        state.policy_params, small.MODEL, *built.segments.rows[:3]
    )
    head = state.actor.params['value_head']
    share = jax.nn.softmax(hidden_BTD @ head['kernel'] + head['bias'])
    # 21 bins of [-2, 2].
    head_BT = share @ np.linspace(-2 + 2 / 21, 2 - 2 / 21, 21)
    value_BT = critic_lib.align(head_BT, built.segments.rows.position_BT)
    actions_BT = built.segments.rows.action_mask_BT
    np.testing.assert_allclose(
        scored.value_BT[actions_BT], value_BT[actions_BT], rtol=1e-4, atol=1e-4
    )

  def test_C10_O7_a_shared_state_is_saved_and_restored(self):
    made = small.learner(8, critic=SHARED)
    state = made.init_state(small.params(), with_critic=True)
    store = store_lib.CheckpointStore(
        self.create_tempdir().full_path, schema.CheckpointConfig()
    )
    self.addCleanup(store.close)
    store.save(1, state.parts, HOST)
    like = jax.tree.map(jnp.zeros_like, state)
    got, _ = store.restore(1, like.parts)
    got = like.with_parts(got)
    self.assertIsNone(got.critic)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(state), strict=True):
      np.testing.assert_array_equal(a, b)

  def test_C10_without_a_critic_there_is_no_head(self):
    state = learner(SHARED).init_state(
        small.params(), with_critic=False
    )
    self.assertNotIn('value_head', state.actor.params)
    self.assertIsNone(state.critic_params)


class BinsTest(parameterized.TestCase):

  @parameterized.parameters(-1.5, -0.5, 0.0, 0.4, 1.5)
  def test_C11_a_head_over_bins_starts_at_its_bias(self, value):
    head = critic_lib.init_head(
        small.params(), head_bias=value, bins=21, value_range=(-2.0, 2.0)
    )
    self.assertEqual(head['kernel'].shape, (16, 21))
    found = critic_lib.expected(head['bias'][None], (-2.0, 2.0))
    self.assertAlmostEqual(float(found[0]), value, delta=1e-3)

  def test_C11_expected_bin_centre(self):
    # Centres 0.5, 1.5, 2.5 with shares 1/2, 1/4, 1/4.
    logits = jnp.log(jnp.asarray([[[2.0, 1.0, 1.0]]]))
    found = critic_lib.expected(logits, (0.0, 3.0))
    np.testing.assert_allclose(found, [[1.25]], rtol=1e-6)

  def test_V0_C11_logits_are_shifted_like_values(self):
    logits = jnp.arange(12.0).reshape(1, 4, 3)
    found = critic_lib.align(logits, jnp.asarray([[0, 1, 0, 1]]))
    np.testing.assert_array_equal(found[0, 1], logits[0, 0])
    np.testing.assert_array_equal(found[0, 3], logits[0, 2])
    np.testing.assert_array_equal(found[0, 2], np.zeros(3))
    with self.assertRaisesRegex(ValueError, 'position_BT'):
      critic_lib.align(logits, jnp.zeros((1, 3)))

  def test_C11_the_setting_changes_the_step_and_values_reach_the_target(self):
    made = learner(BINS)
    state = made.init_state(small.params(), with_critic=True)
    micro = part(made, small.batch())
    critic, losses, values = state.critic, [], []
    for _ in range(25):
      critic, stats, _ = made.update_critic(critic, [micro])
      losses.append(float(stats['loss'].total))
      values.append(float(stats['value'].mean))
    self.assertAlmostEqual(values[0], 0.4, delta=1e-3)
    self.assertAlmostEqual(values[-1], RETURN, delta=0.15)
    # Cross entropy with 21 bins, not half a square: .5 * .8^2 = .32.
    self.assertGreater(losses[0], 2.0)
    self.assertLess(losses[-1], 0.8 * losses[0])


if __name__ == '__main__':
  absltest.main()
