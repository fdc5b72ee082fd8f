"""Hugging Face folders, in and out."""

import json
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from rl_tpu.config import schema
from rl_tpu.models import huggingface
from rl_tpu.models import tensor_files
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import stops
from tests.models import cases
from tests.models import parity_models


class HuggingfaceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def export(self, **changes):
    config = cases.config(**changes)
    params = cases.params(config)
    huggingface.save(self.folder, config, params)
    return config, params

  def tensors(self, file='model.safetensors'):
    return safetensors_numpy.load_file(str(self.folder / file))

  def write(self, tensors, file='model.safetensors'):
    safetensors_numpy.save_file(tensors, str(self.folder / file))

  def shard(self, tensors, parts=2):
    """Replaces the single file by shards with an index."""
    names, weight_map = sorted(tensors), {}
    for part in range(parts):
      file = f'model-{part + 1}.safetensors'
      chosen = names[part::parts]
      self.write({name: tensors[name] for name in chosen}, file)
      weight_map |= dict.fromkeys(chosen, file)
    index = {'metadata': {}, 'weight_map': weight_map}
    (self.folder / tensor_files.INDEX).write_text(json.dumps(index))
    (self.folder / tensor_files.SINGLE).unlink()

  def edit_config(self, **changes):
    path = self.folder / 'config.json'
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(data))

  @parameterized.parameters(*cases.VARIANTS)
  def test_K40_export_then_import_is_bit_equal(self, name):
    config, params = self.export(**cases.VARIANTS[name])
    found, loaded = huggingface.load(self.folder)
    self.assertEqual(found, config)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    names = set(self.tensors())
    huggingface.save(self.folder, found, loaded)
    self.assertEqual(set(self.tensors()), names)

  def test_K40a_bias_tensors(self):
    self.export(qkv_bias=True)
    tensors = self.tensors()
    biases = [name for name in tensors if name.endswith('.bias')]
    self.assertLen(biases, 6)
    gone = 'model.layers.1.self_attn.k_proj.bias'
    del tensors[gone]
    self.write(tensors)
    with self.assertRaisesRegex(ValueError, gone):
      huggingface.load(self.folder)

  def test_K40b_a_missing_shard_is_named_before_anything_is_read(self):
    _, params = self.export()
    self.shard(self.tensors())
    _, loaded = huggingface.load(self.folder)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    (self.folder / 'model-2.safetensors').unlink()
    (self.folder / 'model-1.safetensors').write_bytes(b'cut')
    with self.assertRaisesRegex(ValueError, 'model-2.safetensors is missing'):
      huggingface.load(self.folder)

  def test_K40c_a_tied_output_tensor_must_be_the_embedding(self):
    _, params = self.export(tie_embeddings=True)
    tensors = self.tensors()
    self.assertNotIn('lm_head.weight', tensors)
    tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
    self.shard(tensors)
    _, loaded = huggingface.load(self.folder)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    tensors['lm_head.weight'] = tensors['lm_head.weight'] + 1.0
    (self.folder / tensor_files.INDEX).unlink()
    self.write(tensors)
    with self.assertRaisesRegex(ValueError, 'lm_head.weight differs'):
      huggingface.load(self.folder)

  def test_K40d_a_tensor_without_a_place_is_named(self):
    self.export()
    extra = {'model.layers.0.mlp.router.weight': np.zeros(3, np.float32)}
    self.write(self.tensors() | extra)
    with self.assertRaisesRegex(ValueError, 'mlp.router.weight has no place'):
      huggingface.load(self.folder)

  def test_K40_a_misshapen_tensor_is_named(self):
    self.export()
    tensors = self.tensors()
    name = 'model.layers.0.mlp.up_proj.weight'
    tensors[name] = np.ascontiguousarray(tensors[name].T)
    self.write(tensors)
    with self.assertRaisesRegex(
        ValueError, rf'{name} has shape \[32, 48\].*\[48, 32\]'
    ):
      huggingface.load(self.folder)

  @parameterized.parameters('rope_type', 'type')
  def test_K41_both_key_names_and_no_other_kind(self, key):
    config, _ = self.export(rope_scaling=cases.LLAMA3)
    rule = {k: v for k, v in cases.LLAMA3.items() if k != 'rope_type'}
    self.edit_config(rope_scaling=rule | {key: 'llama3'})
    self.assertEqual(huggingface.read_config(self.folder), config)
    self.edit_config(rope_scaling={key: 'yarn', 'factor': 4.0})
    with self.assertRaisesRegex(ValueError, 'yarn'):
      huggingface.read_config(self.folder)

  def test_K41_newer_rope_parameters(self):
    self.export()
    rule = dict(cases.LLAMA3, rope_theta=5e5)
    self.edit_config(rope_scaling=None, rope_parameters=rule)
    found = huggingface.read_config(self.folder)
    self.assertEqual(found.rope_theta, 5e5)
    self.assertEqual(dict(found.rope_scaling), cases.LLAMA3)

  def test_K42_head_width_of_the_config(self):
    self.export(width=40, head_width=16, num_heads=4, num_kv_heads=2)
    tensors = self.tensors()
    layer = 'model.layers.0.self_attn.'
    self.assertEqual(tensors[layer + 'q_proj.weight'].shape, (64, 40))
    self.assertEqual(tensors[layer + 'k_proj.weight'].shape, (32, 40))
    self.assertEqual(tensors[layer + 'v_proj.weight'].shape, (32, 40))
    self.assertEqual(tensors[layer + 'o_proj.weight'].shape, (40, 64))
    self.assertEqual(huggingface.read_config(self.folder).head_width, 16)
    # Absent: width over heads, as in 2560 over 32 = 80.
    self.edit_config(head_dim=None, hidden_size=2560, num_attention_heads=32)
    self.assertEqual(huggingface.read_config(self.folder).head_width, 80)

  def test_parameters_land_on_the_mesh(self):
    config, params = self.export()
    mesh = mesh_lib.make_mesh(schema.MeshConfig(2, 2, 2))
    _, loaded = huggingface.load(self.folder, mesh=mesh)
    gate = loaded['layers']['gate']['kernel']
    self.assertEqual(gate.addressable_shards[0].data.shape, (2, 16, 24))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)

  @parameterized.parameters(jnp.bfloat16, np.float16)
  def test_half_precision_files_are_read_exactly(self, dtype):
    self.export(**cases.VARIANTS['qwen2'])
    rounded = {
        name: np.asarray(array).astype(dtype)
        for name, array in self.tensors().items()
    }
    self.write(rounded)
    _, loaded = huggingface.load(self.folder)
    embedding = loaded['embed']['embedding']
    self.assertEqual(embedding.dtype, jnp.float32)
    np.testing.assert_array_equal(
        embedding, rounded['model.embed_tokens.weight'].astype(np.float32)
    )
    np.testing.assert_array_equal(
        loaded['layers']['up']['kernel'][1],
        rounded['model.layers.1.mlp.up_proj.weight'].T.astype(np.float32),
    )

  def test_bfloat16_export_halves_the_file_and_is_marked(self):
    config = cases.config()
    huggingface.save(
        self.folder, config, cases.params(config), dtype='bfloat16'
    )
    (name,) = {str(array.dtype) for array in self.tensors().values()}
    self.assertEqual(name, 'bfloat16')
    content = json.loads((self.folder / 'config.json').read_text())
    self.assertEqual(content['torch_dtype'], 'bfloat16')
    _, once = huggingface.load(self.folder)
    huggingface.save(self.folder, config, once, dtype='bfloat16')
    _, twice = huggingface.load(self.folder)
    jax.tree.map(np.testing.assert_array_equal, twice, once)

  def test_K40_shards_are_filled_to_their_size_and_indexed(self):
    config = cases.config()
    params = cases.params(config)
    huggingface.save(self.folder, config, params, shard_bytes=12_000)
    self.assertFalse((self.folder / tensor_files.SINGLE).exists())
    index = json.loads((self.folder / tensor_files.INDEX).read_text())
    files = sorted(set(index['weight_map'].values()))
    self.assertGreater(len(files), 3)
    self.assertEqual(files[0], f'model-00001-of-{len(files):05}.safetensors')
    held = [self.tensors(file) for file in files]
    sizes = [sum(array.nbytes for array in file.values()) for file in held]
    self.assertLessEqual(max(sizes), 12_000)
    self.assertEqual(index['metadata']['total_size'], sum(sizes))
    # 24 x 32 rows twice; per layer the projections, the gated layer, norms.
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    self.assertEqual(sum(sizes), 4 * (2 * 24 * 32 + 2 * layer + 32))
    _, loaded = huggingface.load(self.folder)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    # A smaller model takes the place of all of them.
    huggingface.save(self.folder, config, params)
    self.assertEqual(
        [path.name for path in self.folder.glob('model*')],
        [tensor_files.SINGLE],
    )

  @parameterized.parameters(
      # Biases and two projections in one tensor; a tensor for each expert.
      ('glm4', None, 500),
      ('glm4_moe', schema.MeshConfig(fsdp=2, tensor=2, expert=2), 1500),
  )
  def test_blocks_of_any_size_give_the_same_parameters(
      self, kind, axes, size
  ):
    """Cut in layers, in experts, in rows and to single rows."""
    parity_models.write_folder(kind, self.folder)
    _, whole = huggingface.load(self.folder)
    mesh = None if axes is None else mesh_lib.make_mesh(axes)
    with mock.patch.object(huggingface, '_BLOCK_BYTES', (size, size)):
      _, loaded = huggingface.load(self.folder, mesh=mesh)
    jax.tree.map(np.testing.assert_array_equal, loaded, whole)

  def test_progress_ends_with_all_bytes(self):
    config = cases.config()
    seen = []
    huggingface.save(
        self.folder,
        config,
        cases.params(config),
        shard_bytes=12_000,
        on_written=lambda *bytes_: seen.append(bytes_),
    )
    self.assertEqual(seen, sorted(seen))
    self.assertEqual(*seen[-1])

  def test_K40_a_tensor_of_another_dtype_is_named(self):
    self.export()
    name = 'model.layers.0.mlp.up_proj.weight'
    self.write(self.tensors() | {name: np.zeros((48, 32), np.int8)})
    with self.assertRaisesRegex(ValueError, rf'{name} has dtype I8'):
      huggingface.load(self.folder)

  def test_K40_a_tensor_that_its_file_lacks_or_two_hold_is_named(self):
    self.export()
    self.shard(self.tensors())
    first = self.tensors('model-1.safetensors')
    name, array = sorted(first.items())[0]
    del first[name]
    self.write(first, 'model-1.safetensors')
    with self.assertRaisesRegex(ValueError, f'{name} is missing in model-1'):
      huggingface.load(self.folder)
    for file in ('model-1.safetensors', 'model-2.safetensors'):
      self.write(self.tensors(file) | {name: array}, file)
    with self.assertRaisesRegex(ValueError, f'{name} is in .* and in model-2'):
      huggingface.load(self.folder)

  @parameterized.parameters(
      (dict(model_type='gpt2'), "model_type = 'gpt2'"),
      (dict(hidden_act='gelu_new'), 'gelu_new'),
      (dict(attention_bias=True), 'attention_bias'),
      (dict(mlp_bias=True), 'mlp_bias'),
      (dict(use_sliding_window=True), 'use_sliding_window'),
      (dict(layer_types=['sliding_attention']), 'sliding_attention'),
      (dict(partial_rotary_factor=0.5), 'partial_rotary_factor'),
      (dict(quantization_config={'bits': 4}), 'quantization_config'),
      (dict(hidden_size='32'), 'hidden_size'),
      (dict(num_key_value_heads=3), 'num_kv_heads'),
  )
  def test_a_model_that_is_not_covered_is_refused_by_name(self, change, line):
    self.export()
    self.edit_config(**change)
    with self.assertRaisesRegex(ValueError, line):
      huggingface.read_config(self.folder)

  def test_missing_files_are_named(self):
    with self.assertRaisesRegex(ValueError, 'config.json is missing'):
      huggingface.load(self.folder)
    self.export()
    (self.folder / tensor_files.SINGLE).write_bytes(b'cut')
    with self.assertRaisesRegex(ValueError, 'model.safetensors cannot be read'):
      huggingface.load(self.folder)
    (self.folder / tensor_files.SINGLE).unlink()
    with self.assertRaisesRegex(ValueError, 'holds neither'):
      huggingface.load(self.folder)
    (self.folder / 'config.json').write_text('{')
    with self.assertRaisesRegex(ValueError, 'does not parse as JSON'):
      huggingface.load(self.folder)

  def test_a_full_disk_is_told_in_one_line(self):
    full = safetensors.SafetensorError('No space left (os error 28)')
    with mock.patch.object(safetensors_numpy, 'save_file', side_effect=full):
      with self.assertRaisesRegex(
          stops.WriteFailed, r'model\.safetensors: No space left'
      ):
        self.export()

  def test_what_no_model_type_has_is_not_exported(self):
    with self.assertRaisesRegex(ValueError, 'qkv_bias = True has no place'):
      self.export(qk_norm=True, qkv_bias=True)


if __name__ == '__main__':
  absltest.main()
