"""The hash of parameters that C1 logs."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import fingerprint
from rl_tpu.sharding import mesh as mesh_lib


def tree() -> dict:
  rng = np.random.default_rng(0)
  return {
      'a': jnp.asarray(rng.normal(size=(8, 6)), jnp.float32),
      'b': {'c': jnp.zeros(5), 'd': jnp.asarray(0.25)},
  }


class FingerprintTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.digest = fingerprint.fingerprint(tree())

  def changed(self, leaf) -> str:
    return fingerprint.fingerprint({**tree(), 'a': leaf})

  def test_C1_equal_parameters_have_one_hash(self):
    self.assertRegex(self.digest, '^[0-9a-f]{16}$')
    self.assertEqual(fingerprint.fingerprint(tree()), self.digest)

  @parameterized.parameters((0, 0), (7, 5), (3, 2))
  def test_C1_one_bit_of_one_number_changes_it(self, row, column):
    host = np.array(tree()['a'])
    host[row, column] = np.nextafter(host[row, column], np.float32(9))
    self.assertNotEqual(self.changed(jnp.asarray(host)), self.digest)

  def test_C1_order_sign_and_names_count(self):
    a = tree()['a']
    self.assertNotEqual(self.changed(a[::-1]), self.digest)
    self.assertNotEqual(self.changed(a.reshape(6, 8)), self.digest)
    minus_zero = {**tree(), 'b': {'c': -jnp.zeros(5), 'd': jnp.asarray(0.25)}}
    self.assertNotEqual(fingerprint.fingerprint(minus_zero), self.digest)
    renamed = {'e': a, 'b': tree()['b']}
    self.assertNotEqual(fingerprint.fingerprint(renamed), self.digest)

  def test_C1_the_hash_does_not_depend_on_the_mesh(self):
    mesh = mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:8])
    sharding = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec('data')
    )
    split = jax.device_put(tree()['a'], sharding)
    self.assertEqual(self.changed(split), self.digest)

  @parameterized.parameters('float32', 'bfloat16')
  def test_O7_a_save_needs_no_copy_of_the_parameters(self, dtype):
    leaves = {
        name: jax.ShapeDtypeStruct((64, 128, 128), dtype) for name in 'abcd'
    }
    # pylint: disable-next=protected-access
    program = fingerprint._sums.lower(leaves).compile()
    temporary = program.memory_analysis().temp_size_in_bytes
    self.assertLess(temporary, 64 * 128 * 128 // 16)


if __name__ == '__main__':
  absltest.main()
