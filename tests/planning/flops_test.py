"""Operations counted by hand against those read from a program."""

from absl.testing import absltest
import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.models import actor
from rl_tpu.models import decoder
from rl_tpu.models import mixture
from rl_tpu.models import splash
from rl_tpu.planning import flops
from rl_tpu.sharding import mesh as mesh_lib
from tests.models import cases


def count(function, *shapes):
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return flops.count(jax.make_jaxpr(function)(*arrays))


class FlopsTest(absltest.TestCase):

  def test_a_product(self):
    # 3 x 5 results of 4 products and sums each.
    self.assertEqual(count(jnp.matmul, (3, 4), (4, 5)), 2 * 3 * 4 * 5)

  def test_a_scan_counts_as_often_as_it_runs(self):
    def function(x, w):
      step = lambda x, _: (jnp.tanh(x @ w), None)
      return jax.lax.scan(step, x, length=7)[0]

    self.assertEqual(count(function, (3, 4), (4, 4)), 7 * 2 * 3 * 4 * 4)

  def test_of_branches_the_most_expensive_counts(self):
    def function(x, w):
      return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x)

    self.assertEqual(count(function, (3, 4), (4, 4)), 2 * 2 * 3 * 4 * 4)

  def test_what_is_computed_again_counts_again(self):
    def loss(w, x):
      layer = jax.checkpoint(lambda x, w: jnp.sin(x @ w))
      return jnp.sum(layer(x, w))

    # The product, the same once more, and one for each gradient.
    once = 2 * 3 * 4 * 4
    found = count(jax.value_and_grad(loss, (0, 1)), (4, 4), (3, 4))
    self.assertEqual(found, 4 * once)

  def test_what_nothing_reads_is_not_counted(self):
    def function(x, w):
      def step(x, _):
        del _
        return x @ w, x @ w @ w  # The second one is not returned.

      return jax.lax.scan(step, x, length=7)[0]

    self.assertEqual(count(function, (3, 4), (4, 4)), 7 * 2 * 3 * 4 * 4)

  def test_shards_are_counted_together(self):
    mesh = mesh_lib.make_mesh(schema.MeshConfig(data=-1))
    rows = jax.sharding.PartitionSpec(mesh_lib.BATCH_AXES)
    function = jax.shard_map(
        jnp.matmul,
        mesh=mesh,
        in_specs=(rows, jax.sharding.PartitionSpec()),
        out_specs=rows,
    )
    self.assertEqual(count(function, (16, 4), (4, 5)), 2 * 16 * 4 * 5)

  def test_a_mixture_needs_the_same_however_its_experts_are_divided(self):
    config = cases.config(mixture=cases.mixture())
    layer = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
        decoder.shapes_of(config)['layers']['mixture'],
    )
    experts = mixture.Experts(
        layer['router']['kernel'],
        layer['router']['bias'],
        *(layer[name]['kernel'] for name in ('gate', 'up', 'down')),
    )

    def of(**sizes):
      mesh = mesh_lib.make_mesh(schema.MeshConfig(**sizes))
      return count_of(
          lambda experts, x: mixture.apply(experts, config, x, mesh)[0], experts
      )

    def count_of(function, experts):
      x = jax.ShapeDtypeStruct((64, config.width), jnp.float32)
      return flops.count(jax.make_jaxpr(function)(experts, x))

    # 64 tokens with two experts of three matrices each, their router, and the
    # weighted sum of what the experts say.
    width, wide = config.width, config.mixture.expert_width
    needed = 2 * 64 * (2 * 3 * width * wide + width * 4 + 2 * width)
    self.assertEqual(
        count_of(lambda e, x: mixture.apply(e, config, x)[0], experts), needed
    )
    self.assertEqual(of(data=8), needed)
    # Every shard adds the sums of the other's tokens to its own, of nothing.
    for shards in (2, 4):
      sums = 2 * 64 * 2 * width * (shards - 1)
      self.assertEqual(of(data=8 // shards, expert=shards), needed + sums)

  def test_a_splash_kernel_counts_the_causal_half(self):
    T, H, K = 256, 2, 128

    def function(query, key, value):
      segment = jnp.zeros((1, T), jnp.int32)
      return splash.packed(query, key, value, segment, interpret=True)

    # Scores and weighted values: two products over half of T x T.
    expected = 2 * (2 * H * T * T * K) / 2
    self.assertEqual(count(function, *[(1, T, H, K)] * 3), expected)

  def test_a_model_needs_what_its_forward_pass_does(self):
    # Attention by XLA takes all of the scores of its blocks, up to 128 here:
    # twice the causal half that the model needs.
    config = cases.config()
    rows = cases.rows([cases.ids(1, 64)], length=64)
    params = decoder.shapes_of(config)
    traced = jax.make_jaxpr(
        lambda params: actor.logp_and_entropy(
            params, config, rows, temperature=1.0
        )
    )(params)
    scores = 2.0 * 64 * 2 * 4 * 8 * 64
    needed = flops.of_model(config, 64, 64, heads=config.vocab_size)
    self.assertEqual(flops.count(traced), needed + scores)


if __name__ == '__main__':
  absltest.main()
