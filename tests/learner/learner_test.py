"""L8, L9, L18, G23, K11, K16: the learner on fixed recorded rollouts."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import termination as term
from tests.learner import recorded

MODEL = model_config.DecoderConfig(
    vocab_size=24,
    width=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_width=16,
    mlp_width=48,
    max_length=64,
)
CRITIC = schema.CriticConfig(value_clip=0.3, head_bias=0.2)
GAE = schema.GaeConfig(
    gamma=0.98, lambda_policy=schema.LambdaConfig(fixed=0.9)
)


@functools.cache
def _params():
  return decoder.init_params(MODEL, jax.random.key(1))


def params():
  # A copy: an update donates what the state was made of.
  return jax.tree.map(jnp.copy, _params())


@functools.cache
def learner(devices: int) -> learner_lib.Learner:
  mesh = mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices])
  return learner_lib.Learner(
      MODEL,
      mesh,
      model=schema.ModelConfig(remat='none', logits_chunk=64),
      temperature=1.0,
      objective=objective.Settings(
          kl=schema.KlConfig(in_='loss', estimator='k2', coef=0.1),
          loss=schema.LossConfig(entropy_coef=0.01),
      ),
      gae_config=GAE,
      critic=CRITIC,
      actor_optimizer=schema.OptimizerConfig(learning_rate=1e-2),
      critic_optimizer=schema.OptimizerConfig(learning_rate=1e-2),
  )


def build(rows_per_microbatch: int) -> batching.Batch:
  rollouts = recorded.rollouts(MODEL.vocab_size)
  admitted = admission.admit(
      rollouts,
      termination=term.TerminationRules(),
      data=schema.DataConfig(),
      reward=schema.RewardConfig(weights={'terminal': 1.0, 'step': 1.0}),
      row_length=48,
  )
  assert len(admitted.admitted) == len(rollouts), admitted.discards
  return batching.build(
      admitted,
      batching=schema.BatchingConfig(
          minibatches=1, row_length=48,
          rows_per_microbatch=rows_per_microbatch,
      ),
      gae=GAE,
      critic=CRITIC,
      loss=schema.LossConfig(),
      compaction=schema.CompactionConfig(),
  )


def updater(devices: int) -> update_lib.Updater:
  return update_lib.Updater(
      learner(devices),
      batching=schema.BatchingConfig(),
      critic=CRITIC,
      kl=schema.KlConfig(in_='loss', coef=0.1),
      policy=schema.PolicyConfig(),
      reference=jax.tree.map(lambda x: x * 1.01, params()),
  )


def gradients(devices: int, batch: batching.Batch):
  """Actor's and critic's gradient of the whole batch, and the estimates."""
  update = updater(devices)
  state = learner(devices).init_state(params(), with_critic=True)
  # A value head that is not 0, so that the backbone gets a gradient.
  head = state.critic.params['value_head']
  head['kernel'] = head['kernel'] + 0.3
  scored = update.score(state, batch.segments, batch.minibatches)
  parts = update._minibatches(  # pylint: disable=protected-access
      scored,
      scored.estimates.advantage_BT,
      batch.policy_weight_BT,
      batch.critic_weight_BT,
      batch.minibatches,
  )
  made = learner(devices)
  actor = made.actor_gradient(state.actor.params, parts[0])
  critic = made.critic_gradient(state.critic.params, parts[0])
  advantages = [
      np.concatenate(r) for r in batch.unpack(scored.estimates.advantage_BT)
  ]
  return jax.device_get((actor, critic)), advantages


def assert_same(test, left, right):
  """G32 over every leaf."""
  for (path, a), b in zip(
      jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right)
  ):
    scale = max(1.0, float(np.abs(b).max()))
    np.testing.assert_allclose(
        a, b, rtol=1e-5, atol=1e-5 * scale,
        err_msg=jax.tree_util.keystr(path),
    )
  test.assertGreater(
      max(float(np.abs(x).max()) for x in jax.tree.leaves(right)), 1e-3
  )


class LearnerTest(parameterized.TestCase):

  @functools.cached_property
  def whole(self):
    batch = build(16)
    self.assertLen(batch.minibatches[0], 1)
    return gradients(1, batch)

  @parameterized.parameters((8, 2), (4, 4))
  def test_L8_K11_gradients_do_not_depend_on_microbatches(self, rows, parts):
    batch = build(rows)
    self.assertLen(batch.minibatches[0], parts)
    found, advantages = gradients(1, batch)
    assert_same(self, found, self.whole[0])
    for a, b in zip(advantages, self.whole[1]):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

  @parameterized.parameters((2, 16), (8, 16), (8, 8))
  def test_G23_gradients_do_not_depend_on_devices(self, devices, rows):
    found, advantages = gradients(devices, build(rows))
    assert_same(self, found, self.whole[0])
    for a, b in zip(advantages, self.whole[1]):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

  def test_G15_L9_nonfinite_numbers_in_masked_places_reach_no_gradient(self):
    batch = build(16)
    clean, _ = gradients(1, batch)
    off = ~batch.segments.rows.action_mask_BT
    rows = batch.segments.rows
    logp = np.where(off, np.nan, rows.behaviour_logp_BT).astype(np.float32)
    update = updater(1)
    state = learner(1).init_state(params(), with_critic=True)
    head = state.critic.params['value_head']
    head['kernel'] = head['kernel'] + 0.3
    segments = batch.segments._replace(
        rows=rows._replace(behaviour_logp_BT=logp)
    )
    scored = update.score(state, segments, batch.minibatches)
    estimates = scored.estimates._replace(
        return_BT=np.where(off, np.inf, scored.estimates.return_BT)
    )
    advantage_BT = np.where(off, -np.inf, estimates.advantage_BT)
    scored = update_lib.dataclasses.replace(
        scored,
        estimates=estimates,
        value_BT=np.where(off, np.nan, scored.value_BT),
        reference_logp_BT=np.where(off, np.inf, scored.reference_logp_BT),
    )
    (part,) = update._minibatches(  # pylint: disable=protected-access
        scored, advantage_BT, batch.policy_weight_BT, batch.critic_weight_BT,
        batch.minibatches,
    )
    found = jax.device_get((
        learner(1).actor_gradient(state.actor.params, part),
        learner(1).critic_gradient(state.critic.params, part),
    ))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(clean)):
      np.testing.assert_array_equal(a, b)

  def test_L18_a_nonfinite_batch_is_skipped_and_named(self):
    batch = build(16)
    update = updater(1)
    state = learner(1).init_state(params(), with_critic=True)
    before = jax.device_get(state)
    scored = update.score(state, batch.segments, batch.minibatches)
    advantage_BT = np.full_like(scored.value_BT, np.nan)
    state, report = update.update(
        state,
        scored,
        advantage_BT=advantage_BT,
        policy_weight_BT=batch.policy_weight_BT,
        critic_weight_BT=batch.critic_weight_BT,
        minibatches=batch.minibatches,
        train_actor=True,
    )
    self.assertEqual(report.skipped, {'actor': [0], 'critic': []})
    for a, b in zip(
        jax.tree.leaves(jax.device_get(state.actor)),
        jax.tree.leaves(before.actor),
    ):
      np.testing.assert_array_equal(a, b)
    names = {r.rollout_id for r in batch.minibatch_rollouts(0)}
    self.assertEqual(names, {r.rollout_id for r in batch.rollouts})

  def test_K16_an_empty_batch_changes_nothing_and_the_next_one_works(self):
    update = updater(1)
    state = learner(1).init_state(params(), with_critic=True)
    before = jax.device_get(state)
    batch = build(16)
    scored = update.score(state, batch.segments, batch.minibatches)
    nothing = np.zeros_like(batch.policy_weight_BT)
    options = dict(
        advantage_BT=scored.estimates.advantage_BT,
        minibatches=batch.minibatches,
        train_actor=True,
    )
    state, report = update.update(
        state, scored, policy_weight_BT=nothing, critic_weight_BT=nothing,
        **options,
    )
    self.assertEqual(report.empty, 2)
    for a, b in zip(
        jax.tree.leaves(jax.device_get(state)), jax.tree.leaves(before)
    ):
      np.testing.assert_array_equal(a, b)
    state, report = update.update(
        state, scored, policy_weight_BT=batch.policy_weight_BT,
        critic_weight_BT=batch.critic_weight_BT, **options,
    )
    self.assertEqual(report.empty, 0)
    moved = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()),
        jax.device_get(state.actor.params), before.actor.params,
    )
    self.assertGreater(max(jax.tree.leaves(moved)), 1e-4)

  def test_C1_warm_up_leaves_the_actor_bit_equal(self):
    update = updater(1)
    state = learner(1).init_state(params(), with_critic=True)
    before = jax.device_get(state)
    batch = build(16)
    scored = update.score(state, batch.segments, batch.minibatches)
    state, _ = update.update(
        state,
        scored,
        advantage_BT=scored.estimates.advantage_BT,
        policy_weight_BT=batch.policy_weight_BT,
        critic_weight_BT=batch.critic_weight_BT,
        minibatches=batch.minibatches,
        train_actor=False,
    )
    for a, b in zip(
        jax.tree.leaves(jax.device_get(state.actor)),
        jax.tree.leaves(before.actor),
    ):
      np.testing.assert_array_equal(a, b)
    head = jax.device_get(state.critic.params)['value_head']['kernel']
    self.assertGreater(float(np.abs(head).max()), 0.0)

  def test_G13_values_are_those_of_the_critic_before_its_update(self):
    update = updater(1)
    state = learner(1).init_state(params(), with_critic=True)
    head = state.critic.params['value_head']
    head['kernel'] = head['kernel'] + 0.3
    batch = build(16)
    (head_BT,) = jax.device_get(
        learner(1).value_heads(
            state.critic.params, [learner(1).place_rows(batch.segments.rows)]
        )
    )
    scored = update.score(state, batch.segments, batch.minibatches)
    # V_p is the head one position earlier.
    transition_BT = batch.segments.joins.transition_mask_BT
    row, column = np.nonzero(transition_BT)
    np.testing.assert_array_equal(
        scored.value_BT[row, column], head_BT[row, column - 1]
    )
    # The critic's passes read these values and targets, and make none anew.
    with mock.patch.object(
        learner_lib.Learner, 'value_heads', side_effect=AssertionError
    ):
      update.update(
          state,
          scored,
          advantage_BT=scored.estimates.advantage_BT,
          policy_weight_BT=batch.policy_weight_BT,
          critic_weight_BT=batch.critic_weight_BT,
          minibatches=batch.minibatches,
          train_actor=True,
      )

  def test_moments_lie_where_their_parameters_do(self):
    # Moments left on one device are refused after a restore.
    state = learner(8).init_state(params(), with_critic=True)
    for leaf in jax.tree.leaves(state):
      self.assertLen(leaf.sharding.device_set, 8)

  def test_L21_master_parameters_are_float32(self):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params())
    with self.assertRaisesRegex(ValueError, 'bfloat16'):
      learner(1).init_state(half, with_critic=False)

  def test_batch_mean_values_are_one_constant(self):
    update = update_lib.Updater(
        learner(1),
        batching=schema.BatchingConfig(),
        critic=schema.CriticConfig(values='batch_mean'),
        kl=schema.KlConfig(),
        policy=schema.PolicyConfig(),
        reference=None,
    )
    state = learner(1).init_state(params(), with_critic=True)
    batch = build(16)
    scored = update.score(state, batch.segments, batch.minibatches)
    mask = batch.segments.joins.transition_mask_BT
    returns = [sum(s.reward.sum() for s in r.segments) + r.terminal_reward
               for r in batch.rollouts]
    np.testing.assert_allclose(
        scored.value_BT[mask], np.mean(returns), rtol=1e-5
    )


if __name__ == '__main__':
  absltest.main()
