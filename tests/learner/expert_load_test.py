"""Tokens by expert, from the actor's loss to the report."""

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.learner import networks as networks_lib
from rl_tpu.learner import optimizers
from rl_tpu.learner import report as report_lib
from rl_tpu.losses import objective
from rl_tpu.losses import statistics
from rl_tpu.models import config as config_lib
from rl_tpu.types import batch as batch_lib
from tests.models import cases

MODEL = cases.config(num_layers=3, mixture=cases.mixture())


def loss_stats(model: config_lib.DecoderConfig, params, rows):
  """What the actor's loss counts on rows."""
  networks = networks_lib.Networks(
      decoder=model,
      model=schema.ModelConfig(),
      temperature=1.0,
      objective=objective.Settings(),
      critic=schema.CriticConfig(),
  )
  zeros = jnp.zeros(rows.token_BT.shape)
  part = batch_lib.Minibatch(rows, *[zeros] * 7)
  return jax.jit(networks.actor_loss)(params, part)[1]


class ExpertLoadTest(absltest.TestCase):

  def test_every_real_token_is_counted_by_layer_and_expert(self):
    params = cases.params(MODEL)
    # The bias decides: experts 1 and 3, then 0 and 1.
    chosen_LE = np.array([[0, 1, 0, 1], [1, 1, 0, 0]])
    params['layers']['mixture']['router']['bias'] = jnp.asarray(9.0 * chosen_LE)
    parts = [
        loss_stats(MODEL, params, cases.rows(first, second, length=8))
        for first, second in (
            ([[1, 2, 3]], [[4, 5], [6]]),
            ([[7, 8, 9, 1]], []),
        )
    ]
    merged = jax.tree.map(np.asarray, statistics.merge(*parts))
    step = optimizers.StepReport(
        gradient_norm=np.float32(1.0),
        finite=np.bool_(True),
        empty=np.bool_(False),
        clipped=np.bool_(False),
        flushed=np.float32(0.0),
        nonfinite={},
    )
    report = report_lib.build(
        {'actor': [(merged, step)], 'critic': []},
        1,
        nonfinite={},
        source_norms={},
    )
    # 3 + 2 + 1 tokens of the first part, 4 of the second.
    np.testing.assert_array_equal(report.expert_load, 10 * chosen_LE)

  def test_a_dense_model_has_none(self):
    model = cases.config()
    stats = loss_stats(
        model, cases.params(model), cases.rows([[1, 2]], length=8)
    )
    self.assertNotIn('expert_load_table', stats)


if __name__ == '__main__':
  absltest.main()
