"""Shardings by logical names."""

from absl.testing import absltest
import jax
import numpy as np

from rl_tpu.config import schema
from rl_tpu.models import decoder
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
from tests.models import cases


PartitionSpec = jax.sharding.PartitionSpec


class RulesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.mesh = mesh_lib.make_mesh(schema.MeshConfig(2, 2, 2))

  def test_parameters_are_cut_over_fsdp_and_tensor(self):
    config = cases.config()
    shardings = rules.param_shardings(
        decoder.logical_axes(config), self.mesh, decoder.shapes_of(config)
    )
    specs = jax.tree.map(lambda s: s.spec, shardings)
    layers = specs['layers']
    self.assertEqual(
        layers['query']['kernel'], PartitionSpec(None, 'fsdp', 'tensor', None)
    )
    self.assertEqual(
        layers['down']['kernel'], PartitionSpec(None, 'tensor', 'fsdp')
    )
    self.assertEqual(
        specs['lm_head']['kernel'], PartitionSpec('fsdp', 'tensor')
    )
    params = jax.device_put(cases.params(config), shardings)
    gate = params['layers']['gate']['kernel']
    self.assertEqual(gate.shape, (2, 32, 48))
    self.assertEqual(gate.addressable_shards[0].data.shape, (2, 16, 24))

  def test_a_dimension_that_does_not_divide_is_whole(self):
    config = cases.config(num_heads=3, num_kv_heads=3, vocab_size=25)
    specs = jax.tree.map(
        lambda s: s.spec,
        rules.param_shardings(
            decoder.logical_axes(config), self.mesh, decoder.shapes_of(config)
        ),
    )
    self.assertEqual(
        specs['layers']['query']['kernel'],
        PartitionSpec(None, 'fsdp', None, None),
    )
    self.assertEqual(
        specs['embed']['embedding'], PartitionSpec(None, 'fsdp')
    )

  def test_rows_are_cut_over_both_batch_axes(self):
    rows = jax.device_put(
        np.zeros((8, 6)), rules.rows_sharding(self.mesh)
    )
    self.assertEqual(rows.addressable_shards[0].data.shape, (2, 6))
    whole = jax.device_put(np.zeros((8, 6)), rules.replicated(self.mesh))
    self.assertEqual(whole.addressable_shards[0].data.shape, (8, 6))

  def test_wrong_number_of_names_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'do not name'):
      rules.param_shardings(
          {'x': ('width',)}, self.mesh, {'x': np.zeros((2, 2))}
      )


if __name__ == '__main__':
  absltest.main()
