"""The learner's own jitted estimate on its mesh: golden cases, its program."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
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
from tests.learner import small

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


class ProgramTest(parameterized.TestCase):

  @parameterized.parameters(
      ('token', 'continue'), ('turn', 'continue'), ('token', 'position_scaled')
  )
  def test_eight_devices_gather_no_array_of_tokens(self, level, cut):
    made = small.learner(
        8,
        critic=schema.CriticConfig(level=level),
        gae=schema.GaeConfig(
            cut=cut,
            lambda_policy=schema.LambdaConfig(length_adaptive=0.5),
        ),
    )
    rows, length = 64, 4096
    wide = functools.partial(
        jax.ShapeDtypeStruct, (rows, length), sharding=made.place_rows(
            np.zeros((8, 1))
        ).sharding,
    )
    joins = jax.tree.map(
        lambda x: wide(x.dtype) if x.ndim == 2
        else jax.ShapeDtypeStruct(x.shape, x.dtype),
        small.batch().segments.joins,
    )
    program = made._estimate  # pylint: disable=protected-access
    text = program.lower(
        joins, wide(jnp.int32), (wide(jnp.float32),), None
    ).compile().as_text()
    for moved in ('all-gather', 'all-to-all', 'collective-permute'):
      self.assertNotIn(f' {moved}(', text)
    reduced = re.findall(r'= (.*) all-reduce\(', text)
    self.assertNotEmpty(reduced)
    for shapes in reduced:
      sizes = [
          np.prod([int(d) for d in dims.split(',') if d])
          for dims in re.findall(r'\[([0-9,]*)\]', shapes)
      ]
      # Tables of segments, 64 numbers each.
      self.assertLess(sum(sizes), rows * length)


if __name__ == '__main__':
  absltest.main()
