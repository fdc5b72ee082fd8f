"""Golden cases through the learner's own jitted estimate, on its mesh."""

import jax
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.sharding import mesh as mesh_lib
from tests import golden_case
from tests import golden_checks
from tests import golden_io

# Turn-level critic; adaptive lambda; KL in the reward; all with a dropped
# prefix or excluded ends. Each case compiles a program of its own here.
CASES = ('gae-00', 'gae-03', 'gae-11', 'gae-14')


def learner(golden, devices: int) -> learner_lib.Learner:
  decoder = model_config.DecoderConfig(
      vocab_size=32, width=8, num_layers=1, num_heads=1, num_kv_heads=1,
      head_width=8, mlp_width=8,
  )
  config = golden['config']
  return learner_lib.Learner(
      decoder,
      mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices]),
      model=schema.ModelConfig(),
      temperature=1.0,
      objective=objective.Settings(),
      gae_config=golden_io.gae_config(config),
      critic=schema.CriticConfig(level=config['critic_level']),
      actor_optimizer=schema.OptimizerConfig(),
      critic_optimizer=schema.OptimizerConfig(),
  )


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(
      *((name, case) for name, case in golden_io.named('gae_random')
        if name in CASES)
  )
  def test_G23_random_on_eight_devices(self, golden):
    made = learner(golden, 8)

    def estimate(joins, position_BT, head_BT, kl_BT):
      heads = [made.place_rows(part) for part in (head_BT[:8], head_BT[8:])]
      heads = [head for head in heads if len(head)]
      return made.estimate(joins, position_BT, heads, kl_BT)

    outcome = golden_case.run(golden, estimate=estimate)
    golden_checks.check_all(outcome, golden)


if __name__ == '__main__':
  absltest.main()
