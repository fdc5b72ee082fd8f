"""Routing by hand, and the experts' work against a loop over tokens.

And on meshes against the same on one device.
"""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import execution
from rl_tpu.models import mixture
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
from tests.models import cases


def settings(**changes) -> config_lib.MixtureConfig:
  return config_lib.MixtureConfig(
      **dict(num_experts=4, experts_per_token=2, expert_width=8) | changes
  )


def draw(config, seed=0, tokens=10):
  """Weights of a layer, and tokens."""
  width, made = config.width, config.mixture
  shapes = dict(
      router=(width, made.num_experts),
      bias=(made.num_experts,),
      gate=(made.num_experts, width, made.expert_width),
      up=(made.num_experts, width, made.expert_width),
      down=(made.num_experts, made.expert_width, width),
  )
  rng = np.random.default_rng(seed)
  array = lambda shape: jnp.asarray(0.4 * rng.normal(size=shape), jnp.float32)
  experts = mixture.Experts(**{k: array(v) for k, v in shapes.items()})
  return experts, array((tokens, width))


def loop(experts, config, x_ND):
  """Every token through its experts, one by one, as `mixture.apply`."""
  weight_NM, expert_NM = mixture.route(
      x_ND @ experts.router, experts.bias, config.mixture
  )
  rows = []
  for token, x_D in enumerate(x_ND):
    row = jnp.zeros_like(x_D)
    for choice, expert in enumerate(np.asarray(expert_NM)[token]):
      gate = jax.nn.silu(x_D @ experts.gate[expert])
      out = (gate * (x_D @ experts.up[expert])) @ experts.down[expert]
      row = row + weight_NM[token, choice] * out
    rows.append(row)
  return jnp.stack(rows), expert_NM


def gradients(function, experts, x_ND):
  """A weighted sum of tokens, their experts, and the gradients by both."""
  towards = jnp.cos(jnp.arange(x_ND.size)).reshape(x_ND.shape)

  def value(experts, x_ND):
    out_ND, expert_NM = function(experts, x_ND)
    return jnp.sum(out_ND * towards), expert_NM

  return jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(experts, x_ND)


def assert_close(found, expected):
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5),
      found,
      expected,
  )


class MixtureTest(parameterized.TestCase):

  @parameterized.parameters((True, (4 / 7, 3 / 7)), (False, (0.4, 0.3)))
  def test_softmax_router(self, normalise, expected):
    # Logits ln 2, ln 4, ln 1, ln 3: probabilities 0.2, 0.4, 0.1, 0.3.
    logits = jnp.log(jnp.array([[2.0, 4.0, 1.0, 3.0]]))
    weight, expert = mixture.route(
        logits, None, settings(normalise=normalise)
    )
    np.testing.assert_array_equal(expert, [[1, 3]])
    np.testing.assert_allclose(weight, [expected], rtol=1e-6)

  def test_sigmoid_router_has_its_bias_for_the_choice_only(self):
    # Sigmoids of 2, 1, 0, -1: .880797, .731059, .5, .268941. With 1 more for
    # the last, experts 3 and 0 are chosen; their weights are without it:
    # 2.5 x (.268941, .880797) / 1.149738.
    weight, expert = mixture.route(
        jnp.array([[2.0, 1.0, 0.0, -1.0]]),
        jnp.array([0.0, 0.0, 0.0, 1.0]),
        settings(router='sigmoid', scale=2.5),
    )
    np.testing.assert_array_equal(expert, [[3, 0]])
    np.testing.assert_allclose(weight, [[0.584788, 1.915212]], rtol=1e-5)

  def test_experts_come_from_the_best_groups(self):
    # Groups {0, 1} and {2, 3}: .9 + .1 is less than .6 + .5, so the best
    # expert of all is not taken.
    score = np.array([0.9, 0.1, 0.6, 0.5])
    logits = jnp.asarray(np.log(score / (1.0 - score)), jnp.float32)[None]
    made = settings(router='sigmoid', num_groups=2, normalise=False)
    weight, expert = mixture.route(logits, jnp.zeros(4), made)
    np.testing.assert_array_equal(expert, [[2, 3]])
    np.testing.assert_allclose(weight, [[0.6, 0.5]], rtol=1e-5)
    both = dataclasses.replace(made, groups_per_token=2)
    _, expert = mixture.route(logits, jnp.zeros(4), both)
    np.testing.assert_array_equal(expert, [[0, 2]])

  @parameterized.parameters('softmax', 'sigmoid')
  def test_equals_a_loop_over_tokens_with_its_gradients(self, router):
    config = cases.config(mixture=settings(router=router))
    experts, x_ND = draw(config)
    apply = lambda *args: mixture.apply(args[0], config, args[1])
    plain = lambda *args: loop(args[0], config, args[1])
    found = gradients(apply, experts, x_ND)
    assert_close(found, gradients(plain, experts, x_ND))
    np.testing.assert_array_equal(found[1][0].bias, 0.0)

  def test_no_token_is_dropped_when_all_take_the_same_experts(self):
    config = cases.config(mixture=settings())
    experts, x_ND = draw(config)
    # A router that reads nothing: its choice is experts 0 and 1, half each.
    experts = experts._replace(router=jnp.zeros_like(experts.router), bias=None)
    found, _ = mixture.apply(experts, config, x_ND)
    expected, _ = loop(experts, config, x_ND)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    self.assertGreater(float(jnp.abs(found).min(axis=0).max()), 0.0)

  # Axes data, fsdp, tensor and expert. A shard's tokens take several rounds
  # in all but the first, whose tokens are all of one shard.
  @parameterized.parameters(
      (1, 4, 2, 1), (1, 2, 2, 2), (1, 1, 2, 4), (1, 1, 1, 8)
  )
  def test_P3_on_a_mesh_equals_one_device_with_its_gradients(self, *sizes):
    config = cases.config(mixture=settings(num_experts=8))
    experts, x_ND = draw(config, tokens=64)
    plain = lambda *args: mixture.apply(args[0], config, args[1])
    expected = jax.jit(lambda *args: gradients(plain, *args))(experts, x_ND)

    mesh = mesh_lib.make_mesh(schema.MeshConfig(*sizes))
    axes = mixture.Experts(
        router=('width', 'router'),
        bias=('router',),
        gate=mixture.WIDE,
        up=mixture.WIDE,
        down=mixture.NARROW,
    )
    places = rules.param_shardings(axes._asdict(), mesh, experts._asdict())
    experts = jax.device_put(experts, mixture.Experts(**places))
    x_ND = jax.device_put(x_ND, rules.rows_sharding(mesh))
    apply = lambda *args: mixture.apply(args[0], config, args[1], mesh)
    found = jax.jit(lambda *args: gradients(apply, *args))(experts, x_ND)
    assert_close(found, expected)

  def test_load_counts_the_choices_of_real_tokens(self):
    expert_NM = jnp.array([[0, 2], [2, 3], [2, 0], [1, 3]])
    is_real_N = jnp.array([True, True, True, False])
    load_E = mixture.load(expert_NM, is_real_N, 5)
    np.testing.assert_array_equal(load_E, [2, 0, 3, 1, 0])

  def test_a_dense_decoder_is_the_same_program_with_the_load(self):
    config = cases.config()
    rows = cases.rows([cases.ids(1, 5)], length=8)
    program = lambda function: str(
        jax.make_jaxpr(function, static_argnums=1)(
            decoder.shapes_of(config),
            config,
            rows.token_BT,
            rows.position_BT,
            rows.segment_BT,
        )
    )
    plain, loaded = (
        program(function)
        for function in (decoder.hidden, decoder.hidden_and_load)
    )
    self.assertIn('scan', plain)
    self.assertEqual(loaded, plain)

  def test_the_router_stays_in_float32_where_others_are_cast(self):
    config = cases.config(mixture=cases.mixture())
    mesh = mesh_lib.make_mesh(
        schema.MeshConfig(1, 2, 1, 1), jax.devices()[:2]
    )
    run = execution.Execution(dtype='bfloat16', mesh=mesh)
    layer = jax.tree.map(lambda p: p[0], cases.params(config)['layers'])
    axes = jax.tree.map(
        lambda names: names[1:],
        decoder.logical_axes(config)['layers'],
        is_leaf=lambda x: isinstance(x, tuple),
    )
    cast = run.gather_weights(layer, axes)
    self.assertEqual(cast['query']['kernel'].dtype, jnp.bfloat16)
    self.assertEqual(cast['mixture']['router']['kernel'].dtype, jnp.float32)

  @parameterized.parameters(
      (dict(router='top'), 'router'),
      (dict(num_experts=6, num_groups=4), 'num_groups'),
      (dict(num_groups=2, groups_per_token=3), 'groups_per_token'),
      (dict(num_groups=4), 'best two'),
      (dict(experts_per_token=5), 'experts_per_token'),
      (dict(num_groups=2, experts_per_token=3), 'experts_per_token'),
      (dict(expert_width=0), 'expert_width'),
  )
  def test_a_wrong_setting_is_refused_by_name(self, changes, name):
    with self.assertRaisesRegex(ValueError, name):
      settings(**changes)


if __name__ == '__main__':
  absltest.main()
