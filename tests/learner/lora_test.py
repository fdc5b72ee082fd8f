"""Training adapters over a frozen base (L21, C10, G32)."""

import dataclasses

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.models import decoder
from rl_tpu.models import lora
from rl_tpu.sharding import mesh as mesh_lib
from tests.learner import small

MODEL = dataclasses.replace(small.MODEL, lora=lora.Settings(2, 4.0))


def make(devices: int, **critic) -> learner_lib.Learner:
  return learner_lib.Learner(
      MODEL,
      mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices]),
      model=schema.ModelConfig(remat='none'),
      temperature=1.0,
      objective=objective.Settings(),
      gae_config=schema.GaeConfig(),
      critic=schema.CriticConfig(**critic),
      actor_optimizer=schema.OptimizerConfig(learning_rate=1e-2),
      critic_optimizer=schema.OptimizerConfig(learning_rate=1e-2),
  )


def numbers(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


class LoraTest(parameterized.TestCase):

  @parameterized.parameters('separate', 'shared_backbone')
  def test_C10_updates_move_adapters_and_heads_and_nothing_else(self, sharing):
    made = make(8, sharing=sharing)
    params = decoder.init_params(MODEL, jax.random.key(3))
    base, adapters = jax.tree.map(np.asarray, lora.split(params))
    state = made.init_state(params, with_critic=True)
    head = MODEL.width + 1
    on_actor = head if sharing == 'shared_backbone' else 0
    self.assertEqual(
        numbers(state.actor.params), numbers(adapters) + on_actor
    )
    # Two moments each, and what counts the steps.
    moments = numbers(state.actor.optimizer)
    self.assertLess(moments, 2 * numbers(state.actor.params) + 8)
    updater = small.updater(made)
    before = jax.tree.map(np.asarray, state.policy_params)
    for _ in range(2):
      state, _ = small.step(updater, state, small.batch())
    after = jax.tree.map(np.asarray, state.policy_params)
    jax.tree.map(np.testing.assert_array_equal, lora.split(after)[0], base)
    jax.tree.map(
        np.testing.assert_array_equal, lora.split(before)[1], adapters
    )
    for name in lora.TARGETS:
      for one, two in zip(
          jax.tree.leaves(before['layers'][name]['lora']),
          jax.tree.leaves(after['layers'][name]['lora']),
      ):
        self.assertGreater(np.abs(one - two).max(), 0.0, name)

  def test_the_critic_shares_the_base(self):
    made = make(1)
    state = made.init_state(
        decoder.init_params(MODEL, jax.random.key(3)), with_critic=True
    )
    backbone = state.critic_params['backbone']
    self.assertIs(
        backbone['embed']['embedding'],
        state.policy_params['embed']['embedding'],
    )
    self.assertEqual(set(state.critic.params), {'backbone', 'value_head'})
    self.assertEqual(set(state.critic.params['backbone']), {'layers'})

  def test_G32_eight_devices_have_the_gradient_of_one(self):
    found = []
    for devices in (1, 8):
      made = make(devices)
      params = jax.tree.map(
          lambda leaf: leaf + 0.1, decoder.init_params(MODEL, jax.random.key(3))
      )
      state = made.init_state(params, with_critic=True)
      updater = small.updater(made)
      built = small.batch()
      scored = updater.score(state, built.segments, built.minibatches)
      parts = updater._minibatches(  # pylint: disable=protected-access
          scored, scored.estimates.advantage_BT, built.policy_weight_BT,
          built.critic_weight_BT, built.minibatches,
      )
      sums = made.actor_sums(state.actor.params, parts[0], state.base)
      found.append(jax.device_get(sums[0]))
    for one, eight in zip(*map(jax.tree.leaves, found)):
      scale = max(np.abs(one).max(), 1e-6)
      np.testing.assert_allclose(eight, one, rtol=1e-4, atol=1e-4 * scale)


if __name__ == '__main__':
  absltest.main()
