"""E10: a group without spread moves nothing but KL and entropy."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.sharding import mesh as mesh_lib
from tests import group_cases

MODEL = model_config.DecoderConfig(
    vocab_size=24,
    width=16,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_width=16,
    mlp_width=16,
    max_length=64,
)
TURN = group_cases.Turn(3)


def gradient(scores, *, kl=schema.KlConfig(), loss=schema.LossConfig()):
  """The actor's gradient on one group with these scores."""
  made = learner_lib.Learner(
      MODEL,
      mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:1]),
      model=schema.ModelConfig(remat='none', logits_chunk=64),
      temperature=1.0,
      objective=objective.Settings(kl=kl, loss=loss),
      gae_config=schema.GaeConfig(),
      critic=schema.CriticConfig(),
      actor_optimizer=schema.OptimizerConfig(),
      critic_optimizer=schema.OptimizerConfig(),
  )
  params = decoder.init_params(MODEL, jax.random.key(0))
  update = update_lib.Updater(
      made,
      batching=schema.BatchingConfig(),
      critic=schema.CriticConfig(),
      kl=kl,
      policy=schema.PolicyConfig(),
      reference=(
          None
          if kl.in_ == 'none'
          else jax.tree.map(lambda x: x * 1.1, params)
      ),
  )
  group = schema.GroupConfig(size=len(scores))
  batch = group_cases.build(
      group_cases.admit(
          [
              group_cases.member(f'r{i}', [TURN], score)
              for i, score in enumerate(scores)
          ],
          group=group,
      ),
      row_length=16,
  )
  state = made.init_state(jax.tree.map(jnp.copy, params), with_critic=False)
  scored = update.score(state, batch.segments, batch.minibatches)
  (part,) = update._minibatches(  # pylint: disable=protected-access
      scored,
      groups.advantages(batch, schema.AdvantageConfig(estimator='grpo'), group),
      batch.policy_weight_BT,
      batch.critic_weight_BT,
      batch.minibatches,
  )
  found = jax.device_get(made.actor_gradient(state.actor.params, part))
  return max(float(np.abs(x).max()) for x in jax.tree.leaves(found))


class FlatGroupTest(parameterized.TestCase):

  def test_E10_the_policy_term_is_0(self):
    self.assertEqual(gradient([0.3, 0.3, 0.3]), 0.0)
    self.assertGreater(gradient([1.0, 0.0, 0.3]), 1e-4)

  @parameterized.named_parameters(
      ('kl', {'kl': schema.KlConfig(in_='loss', estimator='k2', coef=0.1)}),
      ('entropy', {'loss': schema.LossConfig(entropy_coef=0.1)}),
  )
  def test_E10_other_terms_remain(self, settings):
    self.assertGreater(gradient([0.3, 0.3, 0.3], **settings), 1e-5)


if __name__ == '__main__':
  absltest.main()
