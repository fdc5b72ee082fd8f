"""Checkpoints of llama2.c, written here number by number."""

import json
import pathlib
import struct

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from rl_tpu.models import huggingface
from rl_tpu.models import importing
from rl_tpu.models import llama2c
from tests.models import cases


def pairs_from_halves(matrix: np.ndarray, heads: int) -> np.ndarray:
  """Row (i, i + K / 2) of a head to the pair (2i, 2i + 1), one by one."""
  size = len(matrix) // heads
  out = np.empty_like(matrix)
  for head in range(heads):
    for i in range(size // 2):
      first = head * size
      out[first + 2 * i] = matrix[first + i]
      out[first + 2 * i + 1] = matrix[first + i + size // 2]
  return out


def checkpoint(config, params) -> bytes:
  """The file of version 0 of a decoder's parameters."""
  layers = params['layers']
  matrix = lambda name, layer, inputs: np.asarray(
      layers[name]['kernel'][layer]
  ).reshape(inputs, -1).T
  each = lambda make: [make(layer) for layer in range(config.num_layers)]
  scale = lambda name: np.asarray(layers[name]['scale'])
  width, inner = config.width, config.num_heads * config.head_width
  table = np.full((config.max_length, config.head_width // 2), 7.0)
  arrays = [
      params['embed']['embedding'],
      scale('attention_norm'),
      *each(
          lambda l: pairs_from_halves(
              matrix('query', l, width), config.num_heads
          )
      ),
      *each(
          lambda l: pairs_from_halves(
              matrix('key', l, width), config.num_kv_heads
          )
      ),
      *each(lambda l: matrix('value', l, width)),
      *each(lambda l: matrix('out', l, inner)),
      scale('mlp_norm'),
      *each(lambda l: matrix('gate', l, width)),
      *each(lambda l: matrix('down', l, config.mlp_width)),
      *each(lambda l: matrix('up', l, width)),
      params['final_norm']['scale'],
      table,
      table,
  ]
  tokens = config.vocab_size
  if not config.tie_embeddings:
    arrays.append(np.asarray(params['lm_head']['kernel']).T)
    tokens = -tokens
  header = struct.pack(
      '<7i',
      *(config.width, config.mlp_width, config.num_layers, config.num_heads),
      *(config.num_kv_heads, tokens, config.max_length),
  )
  numbers = [np.asarray(a, '<f4').tobytes() for a in arrays]
  return header + b''.join(numbers)


class Llama2cTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.file = self.folder / 'model.bin'

  @parameterized.parameters(True, False)
  def test_parameters_arrive_in_their_places(self, tied):
    config = cases.config(
        tie_embeddings=tied, norm_eps=1e-5, max_length=16, num_kv_heads=2
    )
    params = cases.params(config)
    self.file.write_bytes(checkpoint(config, params))
    found, tensors = llama2c.read(self.file)
    self.assertEqual(found, config)
    out = self.folder / 'out'
    importing.write(out, found, tensors, special_ids={'eos_token_id': 1})
    again, loaded = huggingface.load(out)
    self.assertEqual(again, config)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    for name in ('config.json', 'generation_config.json'):
      content = json.loads((out / name).read_text())
      self.assertEqual(content['eos_token_id'], 1)

  def test_rows_of_two_heads_by_hand(self):
    # Two heads of four rows: pairs (0 2)(1 3) and (4 6)(5 7) become halves.
    rows = np.array([[0], [2], [1], [3], [4], [6], [5], [7]])
    np.testing.assert_array_equal(
        importing.halves_from_pairs(rows, 2)[:, 0], np.arange(8)
    )

  @parameterized.parameters(
      (b'', 'is not that of a llama2.c'),
      (b'24ka' + struct.pack('<6i', 1, 2, 3, 4, 5, 6), 'of version 1'),
      (struct.pack('<7i', 32, 48, 0, 4, 2, 24, 16), 'is not that of a llama2'),
      (struct.pack('<7i', 32, 48, 2, 4, 3, 24, 16), 'num_kv_heads = 3'),
      (struct.pack('<7i', 32, 48, 2, 4, 2, 24, 16), 'it is cut'),
  )
  def test_another_file_is_refused(self, data, line):
    self.file.write_bytes(data)
    with self.assertRaisesRegex(ValueError, line):
      llama2c.read(self.file)


if __name__ == '__main__':
  absltest.main()
