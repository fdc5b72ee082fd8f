"""Meshes that an experiment cannot run on are refused at the start."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import policy
from rl_tpu.config import schema


class BuildMeshTest(parameterized.TestCase):

  def config(self, rows: int, length: int, attention: str = 'auto'):
    return schema.ExperimentConfig(
        'test',
        mesh=schema.MeshConfig(data=4, tensor=2),
        model=schema.ModelConfig(attention=attention),
        batching=schema.BatchingConfig(
            row_length=length, rows_per_microbatch=rows
        ),
    )

  def test_axes_have_the_sizes_that_are_asked_for(self):
    mesh = policy.build_mesh(self.config(4, 96))
    self.assertEqual(
        dict(mesh.shape), {'data': 4, 'fsdp': 1, 'expert': 1, 'tensor': 2}
    )

  @parameterized.parameters(
      (6, 96, 'auto', 'batching.rows_per_microbatch = 6'),
      (4, 95, 'auto', 'batching.row_length = 95: .* multiple of mesh.tensor'),
      (4, 96, 'splash', 'batching.row_length = 96: .* multiples of 128'),
  )
  def test_rows_that_do_not_fit(self, rows, length, attention, message):
    with self.assertRaisesRegex(ValueError, message):
      policy.build_mesh(self.config(rows, length, attention))


if __name__ == '__main__':
  absltest.main()
