"""Ids in, ids out; padding; stop tokens."""

import json
import pathlib

import numpy as np
import tokenizers
from absl.testing import absltest
from absl.testing import parameterized
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from rl_tpu.text import tokenizer


def merging() -> tokenizers.Tokenizer:
  """K05's vocabulary: a = 1, b = 2, ab = 3; id 0 is for padding."""
  made = tokenizers.Tokenizer(
      models.BPE({'<pad>': 0, 'a': 1, 'b': 2, 'ab': 3}, [('a', 'b')])
  )
  made.decoder = decoders.Fuse()
  return made


def words(symbols: str = 'ab\n') -> tokenizers.Tokenizer:
  """One token per symbol, ids from 0."""
  made = tokenizers.Tokenizer(
      models.WordLevel({s: i for i, s in enumerate(symbols)}, unk_token='<u>')
  )
  made.pre_tokenizer = pre_tokenizers.Split(
      tokenizers.Regex('.|\\n'), behavior='isolated'
  )
  made.decoder = decoders.Fuse()
  return made


class TokenizerTest(parameterized.TestCase):

  def folder(self, made, config=None) -> str:
    folder = self.create_tempdir().full_path
    made.save(f'{folder}/tokenizer.json')
    if config is not None:
      path = pathlib.Path(folder) / 'tokenizer_config.json'
      path.write_text(json.dumps(config), encoding='utf-8')
    return folder

  def test_K05_decoding_and_encoding_may_change_ids(self):
    # Why sampled ids are never made from text: [1, 2] reads 'ab', which
    # encodes to [3].
    made = tokenizer.Tokenizer(merging())
    self.assertEqual(made.decode(np.array([1, 2], np.int32)), 'ab')
    np.testing.assert_array_equal(made.encode('ab'), [3])

  def test_encode_gives_int32_and_no_special_tokens(self):
    backend = merging()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single='<pad> $A', special_tokens=[('<pad>', 0)]
    )
    ids = tokenizer.Tokenizer(backend).encode('ba')
    self.assertEqual(ids.dtype, np.int32)
    np.testing.assert_array_equal(ids, [2, 1])

  def test_a_callers_edit_does_not_reach_the_next_encoding(self):
    made = tokenizer.Tokenizer(words())
    made.encode('ab')[:] = 2
    np.testing.assert_array_equal(made.encode('ab'), [0, 1])

  @parameterized.parameters((None, 0), (-1, 0), (2, 2))
  def test_K21_pad_id_is_a_valid_id(self, given, expected):
    made = tokenizer.Tokenizer(words(), pad_id=given)
    self.assertEqual(made.pad_id, expected)
    self.assertLess(made.pad_id, made.size)

  def test_K21_pad_id_past_the_vocabulary_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'pad id 3.*3 tokens'):
      tokenizer.Tokenizer(words(), pad_id=3)

  @parameterized.parameters(
      ({'pad_token': 'b'}, 1),
      ({'pad_token': {'content': '\n'}}, 2),
      ({'pad_token': None}, 0),
      ({'pad_token_id': -1}, 0),
      ({'pad_token_id': 2}, 2),
      (None, 0),
  )
  def test_K21_pad_id_from_a_folder(self, config, expected):
    made = tokenizer.Tokenizer.from_folder(self.folder(words(), config))
    self.assertEqual(made.pad_id, expected)

  def test_K21_pad_token_outside_the_vocabulary_is_refused(self):
    folder = self.folder(words(), {'pad_token': '<pad>'})
    with self.assertRaisesRegex(ValueError, "pad_token '<pad>'"):
      tokenizer.Tokenizer.from_folder(folder)

  def test_stop_token_is_one_token_or_refused_by_name(self):
    made = tokenizer.Tokenizer(words())
    self.assertEqual(made.token_id('\n'), 2)
    with self.assertRaisesRegex(ValueError, "'ab'.*2 tokens"):
      made.token_id('ab')
    with self.assertRaisesRegex(ValueError, "'</s>'"):
      made.token_id('</s>')

  def test_unknown_symbols_are_an_error_and_not_dropped(self):
    with self.assertRaisesRegex(ValueError, "'aXb'"):
      tokenizer.Tokenizer(words()).encode('aXb')

  @parameterized.parameters(-1, 3)
  def test_ids_outside_the_vocabulary_are_an_error(self, bad):
    with self.assertRaisesRegex(ValueError, '3 tokens'):
      tokenizer.Tokenizer(words()).decode([0, bad])

  def test_missing_or_broken_files_are_named(self):
    folder = self.create_tempdir().full_path
    with self.assertRaisesRegex(ValueError, 'tokenizer.json'):
      tokenizer.Tokenizer.from_folder(folder)
    path = pathlib.Path(folder) / 'tokenizer.json'
    path.write_text('{"version":', encoding='utf-8')
    with self.assertRaisesRegex(ValueError, 'tokenizer.json.*not parse'):
      tokenizer.Tokenizer.from_folder(folder)

  def test_R5_hash_follows_the_files(self):
    same = [
        tokenizer.Tokenizer.from_folder(self.folder(words())).hash
        for _ in range(2)
    ]
    other = tokenizer.Tokenizer.from_folder(self.folder(words('ba\n'))).hash
    self.assertEqual(same[0], same[1])
    self.assertNotEqual(same[0], other)


if __name__ == '__main__':
  absltest.main()
