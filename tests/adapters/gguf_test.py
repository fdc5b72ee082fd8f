"""GGUF files, written here with the writer of the package."""

import contextlib
import io
import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import gguf
import jax
import numpy as np
from safetensors import numpy as safetensors_numpy

from rl_tpu.cli import main
from rl_tpu.models import gguf_files
from rl_tpu.models import huggingface
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from tests.models import cases
from tests.models import llama2c_test

TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
# The settings of each architecture whose rotary pairs are no neighbours; the
# heads of the second are wider than the model's width over their number.
QWEN = {
    'qwen2': dict(qkv_bias=True, rope_theta=1e6),
    'qwen3': dict(qk_norm=True, head_width=12),
}
# GPT-2 writes a space as U+0120.
TOKENS = ['<s>', '</s>', 'a', 'b', '1', '2', '\u0120', 'ab', '\u0120ab', '12']
MERGES = ['a b', '\u0120 ab', '1 2']
KINDS = [3, 3, 1, 1, 1, 1, 1, 1, 1, 1]
PIECES = ['<unk>', '<s>', '</s>', 'a', 'b', '\u2581', 'ab', '\u2581ab']
PIECE_KINDS = [2, 3, 3, 1, 1, 1, 1, 1]
NAMES = {
    'attention_norm': 'attn_norm',
    'query': 'attn_q',
    'query_norm': 'attn_q_norm',
    'key': 'attn_k',
    'key_norm': 'attn_k_norm',
    'value': 'attn_v',
    'out': 'attn_output',
    'mlp_norm': 'ffn_norm',
    'gate': 'ffn_gate',
    'up': 'ffn_up',
    'down': 'ffn_down',
}


def tensors_of(config, params, *, paired=True) -> dict[str, np.ndarray]:
  """The tensors of a file by name, in `paired` ones rotary pairs adjacent."""
  out = {
      'token_embd.weight': np.asarray(params['embed']['embedding']),
      'output_norm.weight': np.asarray(params['final_norm']['scale']),
  }
  if not config.tie_embeddings:
    out['output.weight'] = np.asarray(params['lm_head']['kernel']).T
  heads = {'query': config.num_heads, 'key': config.num_kv_heads}
  for module, content in params['layers'].items():
    for layer in range(config.num_layers):
      name = f'blk.{layer}.{NAMES[module]}'
      if 'bias' in content:
        out[f'{name}.bias'] = np.asarray(content['bias'][layer]).reshape(-1)
      array = content['kernel' if 'kernel' in content else 'scale']
      array = np.asarray(array[layer])
      if array.ndim > 1:
        inputs = array.shape[0] * (array.shape[1] if module == 'out' else 1)
        array = array.reshape(inputs, -1).T
      if module in heads and paired:
        array = llama2c_test.pairs_from_halves(array, heads[module])
      out[f'{name}.weight'] = np.ascontiguousarray(array)
  return out


class GgufTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.file, self.out = self.root / 'model.gguf', self.root / 'out'
    self.config = cases.config(
        vocab_size=len(TOKENS),
        norm_eps=1e-5,
        rope_theta=1e5,
        max_length=64,
        width=32,
        mlp_width=64,
    )
    self.params = cases.params(self.config)
    self.tensors = tensors_of(self.config, self.params)

  def write(
      self,
      kind='gpt2',
      edit=lambda writer: None,
      quantise=None,
      architecture='llama',
  ):
    """Writes the file; `quantise` is the form of the layers' matrices."""
    config = self.config
    writer = gguf.GGUFWriter(str(self.file), architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if architecture == 'llama':
      writer.add_rope_dimension_count(config.head_width)
      writer.add_vocab_size(config.vocab_size)
    else:
      writer.add_key_length(config.head_width)
      writer.add_value_length(config.head_width)
    writer.add_tokenizer_model(kind)
    if kind == 'gpt2':
      writer.add_tokenizer_pre('smollm' if architecture == 'llama' else 'qwen2')
      writer.add_token_list(TOKENS)
      writer.add_token_types(KINDS)
      writer.add_token_merges(MERGES)
      writer.add_bos_token_id(0)
      writer.add_eos_token_id(1)
    else:
      writer.add_token_list(PIECES)
      writer.add_token_types(PIECE_KINDS)
      writer.add_token_scores([0, 0, 0, 0, 0, 0, -1, -2])
      writer.add_bos_token_id(1)
      writer.add_eos_token_id(2)
      writer.add_eot_token_id(5)
      writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    edit(writer)
    for name, array in self.tensors.items():
      if quantise is not None and array.ndim > 1 and name.startswith('blk'):
        array = gguf.quants.quantize(array, quantise)
        writer.add_tensor(name, array, raw_dtype=quantise)
      else:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

  def call(self) -> tuple[int, str]:
    """Exit code and standard error of the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = main.main([
          'import-gguf', f'--checkpoint={self.file}', f'--out={self.out}'
      ])
    return code, err.getvalue()

  @parameterized.parameters(True, False)
  def test_parameters_arrive_in_their_places(self, tied):
    self.config = cases.config(
        vocab_size=len(TOKENS), norm_eps=1e-5, rope_theta=1e5, max_length=64,
        tie_embeddings=tied,
    )
    params = cases.params(self.config)
    self.tensors = tensors_of(self.config, params)
    self.write()
    self.assertEqual(self.call(), (0, ''))
    config, loaded = huggingface.load(self.out)
    self.assertEqual(config, self.config)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)

  @parameterized.product(kind=sorted(QWEN), tied=[True, False])
  def test_a_folder_of_qwen_comes_back(self, kind, tied):
    self.config = cases.config(
        vocab_size=len(TOKENS), max_length=64, tie_embeddings=tied, **QWEN[kind]
    )
    params = cases.params(self.config)
    self.tensors = tensors_of(self.config, params, paired=False)
    self.assertEqual('output.weight' in self.tensors, not tied)
    huggingface.save(self.root / 'source', self.config, params)
    self.write(architecture=kind)
    self.assertEqual(self.call(), (0, ''))
    before, after = (
        safetensors_numpy.load_file(folder / 'model.safetensors')
        for folder in (self.root / 'source', self.out)
    )
    self.assertEqual(set(after), set(before))
    for name, tensor in before.items():
      np.testing.assert_array_equal(after[name], tensor, name)
    content = json.loads((self.out / 'config.json').read_text())
    self.assertEqual(content['model_type'], kind)
    self.assertEqual(content['rope_theta'], self.config.rope_theta)
    self.assertEqual(huggingface.read_config(self.out), self.config)
    texts = tokenizer_lib.Tokenizer.from_folder(self.out)
    # A space stays alone before a digit; every digit is a word.
    ids = [7, 8, 6, 4, 5, 1]
    self.assertEqual(texts.encode('ab ab 12</s>').tolist(), ids)
    self.assertEqual(texts.decode(ids), 'ab ab 12</s>')

  @parameterized.parameters(
      ('qwen2moe', {}, "general.architecture = 'qwen2moe' is not supported; use"
       ' one of llama, qwen2, qwen3.'),
      # Qwen3 has no biases, Qwen2 has three in every layer.
      ('qwen3', {}, 'model.layers.0.self_attn.k_proj.bias has no place'),
      ('qwen2', {'blk.1.attn_v.bias': None},
       'model.layers.1.self_attn.v_proj.bias is missing'),
  )
  def test_a_file_that_is_no_such_model_is_refused(self, kind, change, line):
    self.config = cases.config(
        vocab_size=len(TOKENS), qkv_bias=True, qk_norm=kind == 'qwen3'
    )
    params = cases.params(self.config)
    tensors = tensors_of(self.config, params, paired=False) | change
    self.tensors = {n: a for n, a in tensors.items() if a is not None}
    self.write(architecture=kind)
    code, err = self.call()
    self.assertEqual(code, 2)
    self.assertLen(err.splitlines(), 1)
    self.assertIn(line, err)
    self.assertFalse(self.out.exists())

  def test_tokenizer_of_bytes_and_template(self):
    self.write()
    self.assertEqual(self.call(), (0, ''))
    texts = tokenizer_lib.Tokenizer.from_folder(self.out)
    # ' ab' is one token; every digit stands alone, so that 12 (9) is not used.
    ids = [7, 8, 6, 4, 5, 1]
    self.assertEqual(texts.encode('ab ab 12</s>').tolist(), ids)
    self.assertEqual(texts.decode(ids), 'ab ab 12</s>')
    self.assertEqual(texts.stop_ids, (1,))
    template = chat.ChatTemplate.from_folder(self.out)
    said = [chat.Message('user', 'ab')]
    self.assertEqual(template.render(said, ask=False), '<s>ab</s>')

  def test_tokenizer_of_pieces(self):
    self.config = cases.config(
        vocab_size=len(PIECES), norm_eps=1e-5, rope_theta=1e5, max_length=64
    )
    self.tensors = tensors_of(self.config, cases.params(self.config))
    self.write('llama')
    self.assertEqual(self.call(), (0, ''))
    texts = tokenizer_lib.Tokenizer.from_folder(self.out)
    self.assertEqual(texts.encode('ab ab').tolist()[-1:], [7])
    self.assertEqual(texts.stop_ids, (2, 5))
    content = json.loads((self.out / 'tokenizer.json').read_text())
    self.assertIn('<s>', str(content['post_processor']))

  @parameterized.parameters(
      # Half a step of eight bits over a block, and of four.
      (gguf.GGMLQuantizationType.Q8_0, 1 / 127),
      (gguf.GGMLQuantizationType.Q4_1, 2 / 15),
  )
  def test_quantised_matrices_are_near(self, kind, step):
    self.write(quantise=kind)
    self.assertEqual(self.call(), (0, ''))
    _, loaded = huggingface.load(self.out)
    for module in ('query', 'gate', 'out'):
      wanted = np.asarray(self.params['layers'][module]['kernel'])
      found = np.asarray(loaded['layers'][module]['kernel'])
      error = np.abs(found - wanted).max()
      self.assertGreater(error, 0.0)
      self.assertLess(error, 0.55 * step * np.abs(wanted).max())

  @parameterized.parameters(
      (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), 'yarn'),
      (lambda w: w.add_expert_count(4), 'llama.expert_count'),
      (lambda w: w.add_key_length(4), 'attention.key_length'),
  )
  def test_a_field_that_is_not_understood_is_refused(self, edit, line):
    self.write(edit=edit)
    code, err = self.call()
    self.assertEqual(code, 2)
    self.assertLen(err.splitlines(), 1)
    self.assertIn(line, err)
    self.assertFalse(self.out.exists())

  def test_every_tensor_is_accounted_for(self):
    name = 'blk.1.ffn_up.weight'
    whole = dict(self.tensors)
    for change, line in (
        ({name: None}, 'model.layers.1.mlp.up_proj.weight is missing'),
        ({'rope_freqs.weight': np.ones(4, np.float32)}, 'rope_freqs.weight'),
        ({name: whole[name].T.copy()}, rf'{name} has shape \[32, 64\]'),
    ):
      changed = whole | change
      self.tensors = {n: a for n, a in changed.items() if a is not None}
      self.write()
      with self.assertRaisesRegex(ValueError, line):
        gguf_files.read(self.file)

  def test_another_file_is_one_line(self):
    self.file.write_bytes(b'not a model, not at all')
    code, err = self.call()
    self.assertEqual(code, 2)
    self.assertIn('it is no GGUF file', err)


if __name__ == '__main__':
  absltest.main()
