"""The same numbers on one, two and eight devices."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.models import actor
from rl_tpu.models import critic
from rl_tpu.models import decoder
from rl_tpu.models import execution
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
from tests.models import cases


@functools.partial(jax.jit, static_argnames=('config', 'run'))
def figures(params, critic_params, config, rows, run=execution.Execution()):
  """Log-probs, values and both gradients."""

  def loss(params, critic_params):
    logp_BT, entropy_BT = actor.logp_and_entropy(
        params,
        config,
        rows,
        temperature=1.0,
        execution=run,
        logits_chunk=32,
    )
    head_BT = critic.value_head(
        critic_params, config, rows, execution=run
    )
    value_BT = critic.align(head_BT, rows.position_BT)
    total = jnp.sum(logp_BT) + jnp.sum(entropy_BT) + jnp.sum(value_BT**2)
    return total, (logp_BT, value_BT)

  return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
      params, critic_params
  )


class ShardedTest(parameterized.TestCase):

  @parameterized.parameters((2, 2, 1, 1), (8, 8, 1, 1), (8, 2, 2, 2))
  def test_P3_figures_do_not_depend_on_the_mesh(self, count, *sizes):
    self.check(cases.config(), count, sizes)

  @parameterized.parameters((2, 1, 1, 1, 2), (8, 2, 1, 2, 2), (8, 1, 2, 1, 4))
  def test_P3_of_a_mixture_over_the_expert_axis(self, count, *sizes):
    self.check(cases.config(mixture=cases.mixture()), count, sizes)

  def test_splash_under_both_kinds_of_layers(self):
    config = cases.config(
        num_layers=2, local_layers=(0,), window=4, attention_softcap=5.0
    )
    self.check(config, 8, (2, 2, 2), length=128, attention='splash_interpret')

  def test_key_heads_fewer_than_the_tensor_axis(self):
    self.check(cases.config(num_kv_heads=1), 8, (2, 1, 4))

  def check(self, config, count, sizes, *, length=20, attention='xla'):
    params = cases.params(config)
    critic_params = critic.init_params(params, head_bias=0.1)
    critic_params['value_head']['kernel'] = jnp.linspace(-1.0, 1.0, 32)
    packed = [[cases.ids(s, 5 + s), cases.ids(20 + s, 6)] for s in range(8)]
    rows = cases.rows(*packed, length=length)
    expected = figures(params, critic_params, config, rows)

    mesh = mesh_lib.make_mesh(
        schema.MeshConfig(*sizes), jax.devices()[:count]
    )
    place = lambda tree, axes: jax.device_put(
        tree, rules.param_shardings(axes, mesh, tree)
    )
    found = figures(
        place(params, decoder.logical_axes(config)),
        place(critic_params, critic.logical_axes(config)),
        config,
        jax.device_put(rows, rules.rows_sharding(mesh)),
        execution.Execution(mesh=mesh, attention=attention),
    )
    for path, wanted in jax.tree_util.tree_leaves_with_path(expected):
      scale = max(1.0, float(np.abs(wanted).max()))
      leaf = found
      for key in path:
        leaf = leaf[getattr(key, 'key', getattr(key, 'idx', None))]
      np.testing.assert_allclose(
          leaf, wanted, rtol=1e-5, atol=1e-5 * scale, err_msg=str(path)
      )


if __name__ == '__main__':
  absltest.main()
