"""The critic that a model folder holds."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
from safetensors import numpy as safetensors_numpy

from rl_tpu.config import schema
from rl_tpu.models import huggingface
from rl_tpu.models import value_head
from rl_tpu.sharding import mesh as mesh_lib
from tests.models import cases

HEAD = {
    'kernel': np.arange(32, dtype=np.float32),
    'bias': np.float32(0.5),
}


def backbone_of(params):
  """A model's parameters without the output layer."""
  return {name: leaf for name, leaf in params.items() if name != 'lm_head'}


class ValueHeadTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.config = cases.config()
    huggingface.save(self.folder, self.config, cases.params(self.config))

  def save(self, head=None, backbone=None, value_range=None, **how):
    made = value_head.Pretrained(head or HEAD, backbone, value_range)
    value_head.save(self.folder, self.config, made, **how)

  def tensors(self):
    return safetensors_numpy.load_file(str(self.folder / value_head.FILE))

  def test_a_folder_without_one_has_none(self):
    self.assertIsNone(value_head.load(self.folder, self.config))

  def test_a_head_on_the_model_of_the_folder(self):
    self.save()
    self.assertCountEqual(
        self.tensors(), ['value_head.kernel', 'value_head.bias']
    )
    found = value_head.load(self.folder, self.config)
    np.testing.assert_array_equal(found.head['kernel'], np.arange(32))
    self.assertEqual(found.head['bias'], 0.5)
    self.assertEqual(found.head['bias'].shape, ())
    self.assertIsNone(found.backbone)
    self.assertIsNone(found.value_range)
    self.assertFalse((self.folder / value_head.CRITIC).exists())
    huggingface.load(self.folder)  # The model is still one.

  def test_a_backbone_of_its_own_loads_like_a_model(self):
    backbone = backbone_of(cases.params(self.config, seed=1))
    self.save(backbone=backbone)
    mesh = mesh_lib.make_mesh(schema.MeshConfig(2, 2, 2))
    found = value_head.load(self.folder, self.config, mesh=mesh)
    jax.tree.map(np.testing.assert_array_equal, found.backbone, backbone)
    gate = found.backbone['layers']['gate']['kernel']
    self.assertEqual(gate.addressable_shards[0].data.shape, (2, 16, 24))
    huggingface.load(self.folder / value_head.CRITIC)

  def test_bins_keep_their_range(self):
    head = {
        'kernel': np.ones((32, 5), np.float32),
        'bias': np.arange(5, dtype=np.float32),
    }
    self.save(head, value_range=(-1.0, 2.0))
    found = value_head.load(self.folder, self.config)
    self.assertEqual(found.value_range, (-1.0, 2.0))
    np.testing.assert_array_equal(found.head['bias'], np.arange(5))

  def test_the_head_keeps_its_precision_in_a_bfloat16_folder(self):
    head = HEAD | {'bias': np.float32(1.2345678)}
    backbone = backbone_of(cases.params(self.config))
    self.save(head, backbone=backbone, dtype='bfloat16')
    self.assertEqual(self.tensors()['value_head.bias'], np.float32(1.2345678))
    content = json.loads((self.folder / 'critic' / 'config.json').read_text())
    self.assertEqual(content['torch_dtype'], 'bfloat16')

  @parameterized.parameters(
      ({'value_head.bias': None}, 'value_head.bias is missing'),
      ({'value_head.x': np.zeros(1)}, 'value_head.x has no place'),
      ({'value_head.kernel': np.zeros(31)}, r'shape \[31\].*is 32 wide'),
      ({'value_head.bias': np.zeros(3)}, r'value_head.bias \[3\]'),
  )
  def test_every_tensor_is_accounted_for(self, change, line):
    self.save()
    tensors = self.tensors() | change
    kept = {
        name: np.asarray(array, np.float32)
        for name, array in tensors.items()
        if array is not None
    }
    path = str(self.folder / value_head.FILE)
    safetensors_numpy.save_file(kept, path)
    with self.assertRaisesRegex(ValueError, line):
      value_head.load(self.folder, self.config)

  def test_a_backbone_that_is_missing_or_of_another_shape_is_refused(self):
    self.save(backbone=backbone_of(cases.params(self.config)))
    other = cases.config(num_layers=1, tie_embeddings=True)
    critic = self.folder / value_head.CRITIC
    huggingface.save(critic, other, cases.params(other))
    with self.assertRaisesRegex(ValueError, 'not that of the model'):
      value_head.load(self.folder, self.config)
    (critic / 'config.json').unlink()
    with self.assertRaisesRegex(ValueError, 'critic/config.json is missing'):
      value_head.load(self.folder, self.config)


if __name__ == '__main__':
  absltest.main()
