"""Weights as strangers leave them: two sets, indices and headers that lie."""

import json
import os
import pathlib
import shutil
import struct

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.models import huggingface
from rl_tpu.models import tensor_files
from rl_tpu.models import value_head
from tests.models import cases

_NAME = 'model.norm.weight'


def _safetensors(header, data: bytes = b'', size: int | None = None) -> bytes:
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return struct.pack('<Q', len(text) if size is None else size) + text + data


def _one(shape, dtype='F32', offsets=(0, 4)):
  return {_NAME: {'dtype': dtype, 'shape': shape, 'data_offsets': offsets}}


class OddWeightsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.config = cases.config()
    self.params = cases.params(self.config)
    huggingface.save(self.folder, self.config, self.params)

  def refused(self, line: str) -> None:
    with self.assertRaisesRegex(ValueError, line) as caught:
      huggingface.load(self.folder)
    self.assertIn(str(self.folder), str(caught.exception))

  def index(self, weight_map) -> None:
    content = {'metadata': {}, 'weight_map': weight_map}
    (self.folder / tensor_files.INDEX).write_text(json.dumps(content))

  def old_shards(self) -> None:
    """Another model's complete index beside the single file."""
    other = self.folder.parent / (self.folder.name + 'old')
    huggingface.save(
        other, self.config, cases.params(self.config), shard_bytes=2**12
    )
    for path in other.glob('model*'):
      shutil.copy(path, self.folder)

  def test_K52_two_sets_of_weights_are_refused_with_both_names(self):
    self.old_shards()
    self.refused('model.safetensors and model.safetensors.index.json')

  def test_K52_an_index_without_its_shards_is_an_old_one(self):
    self.old_shards()
    for path in self.folder.glob('model-*'):
      path.unlink()
    _, found = huggingface.load(self.folder)
    np.testing.assert_array_equal(
        found['embed']['embedding'], self.params['embed']['embedding']
    )
    # Some write an index for a single file, too.
    names = tensor_files.open_file(self.folder / tensor_files.SINGLE)
    self.index(dict.fromkeys(names, tensor_files.SINGLE))
    huggingface.load(self.folder)

  def test_K52_files_of_other_formats_are_not_read(self):
    for name in ('pytorch_model.bin', 'consolidated.safetensors'):
      (self.folder / name).write_bytes(b'another model')
    huggingface.load(self.folder)

  @parameterized.parameters(*tensor_files.ADAPTERS)
  def test_K52_adapters_beside_a_model_are_refused(self, name):
    (self.folder / name).write_bytes(b'{}')
    self.refused(f'{name}: adapters .*merge them')

  @parameterized.parameters(
      (None, 'weight_map must be .* got null'),
      ([], 'weight_map must be'),
      ({}, 'weight_map must be'),
      ({'a': None}, 'weight_map.a = None'),
      ({'a': '../other/model.safetensors'}, 'same folder'),
      ({'a': '/etc/model.safetensors'}, 'same folder'),
      ({'a': 'sub/model.safetensors'}, 'same folder'),
      ({'a': '/etc/passwd'}, 'same folder'),
      ({'a': '..'}, 'same folder'),
      ({'a': 'x\0.safetensors'}, 'no name of a file'),
      ({'a': 'x' * 300 + '.safetensors'}, 'name too long'),
      ({'a': 'gone.safetensors'}, 'gone.safetensors is missing'),
  )
  def test_K54_an_index_that_lies(self, weight_map, line):
    (self.folder / tensor_files.SINGLE).unlink()
    self.index(weight_map)
    self.refused(line)

  @parameterized.named_parameters(
      ('empty', b'', 'copy the file anew'),
      ('short', b'\x01\x02', 'copy the file anew'),
      ('header_longer_than_the_file', _safetensors({}, size=2**40), 'anew'),
      ('header_of_all_bytes', _safetensors({}, size=2**64 - 1), 'anew'),
      ('header_cut', _safetensors(b'{"a": {"dtype"'), 'anew'),
      ('header_no_object', _safetensors(b'[]'), 'anew'),
      ('header_deep', _safetensors(b'[' * 10**5), 'anew'),
      ('data_missing', _safetensors(_one([1])), 'anew'),
      ('offsets_crossed', _safetensors(_one([1], offsets=(4, 0)), b'1234'),
       'anew'),
      ('offsets_of_another_shape', _safetensors(_one([2]), b'1234'), 'anew'),
      ('shape_overflows', _safetensors(_one([2**40, 2**40]), b'1234'), 'anew'),
      ('dtype_unknown', _safetensors(_one([1], 'F99'), b'1234'), 'anew'),
      ('dtype_not_read', _safetensors(_one([4], 'U8'), b'1234'), 'dtype U8'),
      ('nothing', _safetensors({}), 'is missing'),
      ('another_shape', _safetensors(_one([1]), b'1234'), 'is missing'),
  )
  def test_K54_a_header_that_lies(self, data, line):
    (self.folder / tensor_files.SINGLE).write_bytes(data)
    self.refused(line)

  def test_K54_shapes_are_checked_before_numbers_are_read(self):
    path = self.folder / tensor_files.SINGLE
    data = path.read_bytes()
    (size,) = struct.unpack('<Q', data[:8])
    # Every number is NaN, and the config asks for another width.
    path.write_bytes(data[: 8 + size] + b'\xff' * (len(data) - 8 - size))
    self.refused('NaN')
    config = json.loads((self.folder / 'config.json').read_text())
    config['intermediate_size'] += 2
    (self.folder / 'config.json').write_text(json.dumps(config))
    self.refused('has shape')

  def test_K54_things_that_are_no_files(self):
    path = self.folder / tensor_files.SINGLE
    path.unlink()
    os.mkfifo(path)
    self.refused('a pipe or a device')
    path.unlink()
    path.mkdir()
    self.refused('a directory')
    path.rmdir()
    path.symlink_to(path.name)
    self.refused('symbolic links')

  @parameterized.parameters(
      ({'value_range': '[0]'}, 'two numbers'),
      ({'value_range': '[0, "1"]'}, 'two numbers'),
      ({'value_range': '{"a": '}, 'does not parse'),
      ({'value_range': '[' * 10**4}, 'does not parse'),
      ({'value_range': '[NaN, 1]'}, 'NaN'),
      ({'backbone': '../other'}, 'backbone must be'),
  )
  def test_K54_a_value_head_that_lies(self, metadata, line):
    width = self.config.width
    tensors = {
        'value_head.kernel': np.zeros([width], np.float32),
        'value_head.bias': np.zeros([], np.float32),
    }
    path = self.folder / value_head.FILE
    tensor_files.write_file(path, tensors, metadata)
    with self.assertRaisesRegex(ValueError, f'value_head.safetensors.*{line}'):
      value_head.load(self.folder, self.config)

  def test_K54_both_names_of_the_dtype_are_told_alike(self):
    content = json.loads((self.folder / 'config.json').read_text())
    content |= {'dtype': 'bfloat16', 'torch_dtype': 'float16'}
    huggingface.write_config(self.folder, content, 'float32')
    found = json.loads((self.folder / 'config.json').read_text())
    self.assertEqual((found['dtype'], found['torch_dtype']), ('float32',) * 2)


if __name__ == '__main__':
  absltest.main()
