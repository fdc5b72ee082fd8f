"""Publishing weights by version."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import arranged
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.sharding import compile_count
from rl_tpu.sharding import rules
from tests.models import cases
from tests.sampler import worlds


_arrange = jax.jit(arranged.arrange, static_argnums=1)


def _store(on=(1, 1, 1), **settings) -> weights_lib.PolicyStore:
  return weights_lib.PolicyStore(
      decoder_config=worlds.MODEL,
      weight_shardings=weights_lib.shardings(worlds.MODEL, worlds.mesh(*on)),
      **settings,
  )


class PolicyStoreTest(parameterized.TestCase):

  def test_nothing_is_served_before_the_first(self):
    store = _store()
    self.assertIsNone(store.version)
    with self.assertRaisesRegex(ValueError, 'publish'):
      _ = store.weights

  def test_is_a_copy_that_outlives_donation(self):
    params = cases.params(worlds.MODEL, 3)
    want = jax.tree.map(np.array, _arrange(params, worlds.MODEL))
    store = _store()
    store.publish(1, params)
    step = jax.jit(lambda p: jax.tree.map(lambda x: x * 0, p), donate_argnums=0)
    jax.block_until_ready(step(params))
    self.assertTrue(params['final_norm']['scale'].is_deleted())
    jax.tree.map(np.testing.assert_array_equal, store.weights, want)

  def test_second_version_compiles_nothing(self):
    store = _store()
    store.publish(1, cases.params(worlds.MODEL, 1))
    other = cases.params(worlds.MODEL, 2)
    with compile_count.count_compilations() as counter:
      store.publish(2, other)
    self.assertEqual(counter.count, 0, counter.names)
    self.assertEqual(store.version, 2)

  def test_K33_failed_transfer_keeps_version_and_weights(self):
    store = _store()
    store.publish(5, cases.params(worlds.MODEL, 1))
    before = store.weights
    broken = cases.params(worlds.MODEL, 2)
    broken['final_norm']['scale'] = jnp.zeros(7)
    with self.assertRaisesRegex(
        ValueError, r'final_norm/scale has shape \(7,\).* \(32,\)'
    ):
      store.publish(6, broken)
    missing = cases.params(worlds.MODEL, 2)
    del missing['lm_head']
    with self.assertRaisesRegex(ValueError, 'lm_head/kernel has shape None'):
      store.publish(6, missing)
    with self.assertRaisesRegex(ValueError, 'got -1'):
      store.publish(-1, cases.params(worlds.MODEL, 2))
    self.assertEqual(store.version, 5)
    self.assertIs(store.weights, before)

  def test_replace_frees_what_was_served_before_it_makes_the_next(self):
    store = _store(replace=True)
    store.publish(1, cases.params(worlds.MODEL, 1))
    before = store.weights
    broken = cases.params(worlds.MODEL, 2)
    del broken['lm_head']
    with self.assertRaisesRegex(ValueError, 'lm_head/kernel'):
      store.publish(2, broken)
    self.assertIs(store.weights, before)
    freed = []
    arrange = store._arrange

    def watched(params):
      freed.append(before.embed.is_deleted())
      return arrange(params)

    store._arrange = watched
    store.publish(2, cases.params(worlds.MODEL, 2))
    self.assertEqual(freed, [True])
    want = _arrange(cases.params(worlds.MODEL, 2), worlds.MODEL)
    jax.tree.map(np.testing.assert_array_equal, store.weights, want)
    self.assertEqual(store.version, 2)

  def test_reshards_to_fewer_and_to_more_devices(self):
    want = _arrange(worlds.PARAMS(), worlds.MODEL)
    for source, target in (((8, 1, 1), (1, 1, 1)), ((1, 1, 1), (2, 2, 2))):
      params = jax.device_put(
          worlds.PARAMS(), rules.replicated(worlds.mesh(*source))
      )
      store = _store(target)
      store.publish(0, params)
      jax.tree.map(np.testing.assert_array_equal, store.weights, want)
      used = store.weights.head.sharding.device_set
      self.assertEqual(used, set(worlds.mesh(*target).devices.flat))

  def test_split_over_tensor_only(self):
    weights = weights_lib.shardings(worlds.MODEL, worlds.mesh(2, 2, 2))
    layer = weights.layers[0]
    self.assertEqual(tuple(layer.qkv.spec), ('tensor', None, None, None))
    self.assertEqual(tuple(layer.gate_up.spec), (None, 'tensor', None))
    self.assertEqual(tuple(layer.down.spec), (None, 'tensor'))
    self.assertEqual(tuple(weights.head.spec), ('tensor', None))

  @parameterized.parameters(
      # Query heads, key heads, devices: key heads that are served.
      (4, 2, 2, 2), (4, 2, 4, 4), (8, 2, 4, 4), (12, 3, 4, 12), (6, 3, 4, 3)
  )
  def test_every_device_has_whole_key_heads(self, heads, keys, tensor, served):
    config = cases.config(num_heads=heads, num_kv_heads=keys)
    mesh = worlds.mesh(1, 1, tensor)
    self.assertEqual(weights_lib.served(config, mesh).num_kv_heads, served)


if __name__ == '__main__':
  absltest.main()
