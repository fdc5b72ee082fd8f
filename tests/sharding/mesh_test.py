"""The mesh and its refusals."""

from absl.testing import absltest
from absl.testing import parameterized
import jax

from rl_tpu.config import schema
from rl_tpu.sharding import mesh as mesh_lib


class MeshTest(parameterized.TestCase):

  @parameterized.parameters(
      ((-1, 1, 1), (8, 1, 1, 1)),
      ((2, -1, 2), (2, 2, 1, 2)),
      ((1, 4, 2), (1, 4, 1, 2)),
      ((2, 1, 1, -1), (2, 1, 4, 1)),
  )
  def test_sizes(self, given, expected):
    mesh = mesh_lib.make_mesh(schema.MeshConfig(*given))
    self.assertEqual(mesh.axis_names, ('data', 'fsdp', 'expert', 'tensor'))
    self.assertEqual(tuple(mesh.shape.values()), expected)
    auto = jax.sharding.AxisType.Auto
    self.assertEqual(mesh.axis_types, (auto,) * 4)

  def test_some_of_the_devices(self):
    devices = jax.devices()[2:4]
    mesh = mesh_lib.make_mesh(schema.MeshConfig(), devices)
    self.assertEqual(tuple(mesh.shape.values()), (2, 1, 1, 1))
    self.assertEqual(list(mesh.devices.flat), devices)

  @parameterized.parameters(
      ((3, 1, 1), r'mesh\.data = 3.*8 devices'),
      ((2, 2, 1), r'mesh\.fsdp = 2.*8 devices'),
      ((-1, 3, 1), r'mesh\.fsdp = 3.*8 devices'),
      ((-1, -1, 1), r'only one axis may be -1'),
      ((0, 1, 1), r'mesh\.data = 0'),
      ((1, -2, 1), r'mesh\.fsdp = -2'),
  )
  def test_sizes_that_do_not_fit_are_refused(self, given, line):
    with self.assertRaisesRegex(ValueError, line):
      mesh_lib.make_mesh(schema.MeshConfig(*given))

  @parameterized.parameters(19, 2)
  def test_K30_rows_that_do_not_fit_are_refused(self, rows):
    mesh = mesh_lib.make_mesh(schema.MeshConfig(2, 2, 2))
    self.assertEqual(mesh_lib.batch_shards(mesh), 4)
    with self.assertRaisesRegex(
        ValueError, rf'batching\.rows = {rows} .*4.*data 2 x fsdp 2'
    ):
      mesh_lib.check_rows(mesh, rows, 'batching.rows')
    mesh_lib.check_rows(mesh, 20, 'batching.rows')


if __name__ == '__main__':
  absltest.main()
