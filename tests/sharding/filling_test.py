"""Arrays that are filled block by block."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from rl_tpu.config import schema
from rl_tpu.sharding import filling
from rl_tpu.sharding import mesh as mesh_lib

SPEC = jax.sharding.PartitionSpec


def region(*bounds: tuple[int, int]) -> filling.Region:
  return tuple(slice(*pair) for pair in bounds)


class FillingTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.whole = np.arange(4 * 6 * 10, dtype=np.float32).reshape(4, 6, 10)
    self.asked = []

  def read(self, cut):
    self.asked.append(cut)
    return self.whole[cut]

  @parameterized.parameters(
      # (bytes of a block, blocks): a plane is 240 bytes, a column 24.
      (960, 1),
      (480, 2),
      (240, 4),
      (72, 4 * 4),  # Three columns, and one more at the end.
      (8, 4 * 10),  # Less than a column: rows are not cut.
  )
  def test_blocks_cut_the_named_axes_in_order(self, size, count):
    whole = region((0, 4), (0, 6), (0, 10))
    found = filling.blocks(whole, (0, 2), size)
    self.assertLen(found, count)
    seen = np.zeros_like(self.whole)
    for block in found:
      seen[block] += 1
      if size >= 24:
        self.assertLessEqual(self.whole[block].nbytes, size)
    self.assertEqual((seen.min(), seen.max()), (1, 1))

  def test_blocks_of_a_shard_keep_its_place(self):
    found = filling.blocks(region((2, 4), (0, 1), (5, 10)), (0,), 20)
    self.assertEqual(
        found,
        [
            region((2, 3), (0, 1), (5, 10)),
            region((3, 4), (0, 1), (5, 10)),
        ],
    )

  @parameterized.parameters(
      (SPEC(), 10_000, 1),  # Replicated: read once for all eight devices.
      (SPEC(), 240, 4),
      (SPEC(None, 'fsdp', 'tensor'), 10_000, 4),
      (SPEC('fsdp', None, 'tensor'), 120, 2 * 2 * 2),
  )
  def test_every_number_is_read_once(self, spec, size, reads):
    mesh = mesh_lib.make_mesh(schema.MeshConfig(2, 2, 2))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    made = filling.fill(
        self.whole.shape, sharding, self.read, split=(0, 2), block_bytes=size
    )
    np.testing.assert_array_equal(made, self.whole)
    self.assertEqual(made.sharding, sharding)
    self.assertLen(self.asked, reads)
    self.assertEqual(sum(self.whole[cut].size for cut in self.asked), 240)

  def test_without_a_mesh_it_is_on_the_default_device(self):
    made = filling.fill(
        self.whole.shape, None, self.read, split=(0,), block_bytes=240
    )
    np.testing.assert_array_equal(made, self.whole)
    self.assertLen(made.devices(), 1)


if __name__ == '__main__':
  absltest.main()
