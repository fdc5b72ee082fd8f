"""Tokenizers made of pieces and scores, and tokenizer.bin of llama2.c."""

import pathlib
import struct

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.text import llama2c
from rl_tpu.text import piece_tokenizer

KIND = piece_tokenizer.Kind
BYTES = [f'<0x{byte:02X}>' for byte in range(256)]
# Ids from 259 on; the rank of a merge is its place.
PIECES = [' t', 'he', ' a', ' the', ' ', 't', 'h', 'e', 'a']


def tokenizer_bin(pieces=None) -> bytes:
  """The file; scores fall from piece to piece."""
  if pieces is None:
    pieces = ['<unk>', '\n<s>\n', '\n</s>\n', *BYTES, *PIECES]
  out = struct.pack('<i', max(map(len, pieces)))
  for index, piece in enumerate(pieces):
    data = piece.encode()
    score = 259.0 - index if index > 258 else 0.0
    out += struct.pack('<fi', score, len(data)) + data
  return out


class PieceTokenizerTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.file = pathlib.Path(self.create_tempdir().full_path) / 'tok.bin'
    self.file.write_bytes(tokenizer_bin())
    self.size = 259 + len(PIECES)
    self.made = llama2c.read(self.file, self.size)

  def ids(self, text: str, **how) -> list[int]:
    return self.made.encode(text, add_special_tokens=False, **how).ids

  @parameterized.parameters(
      # A space before the text; ' t' + 'he' joins to ' the' (id 262).
      ('the', [262]),
      ('a the', [261, 262]),
      # In the middle of a word 't' stands alone.
      ('that', [259, 265, 267, 264]),
      # ' ' twice: one is put before, one is the text's.
      (' a', [263, 261]),
      # No piece has b: it is byte 0x62, id 3 + 98. Two bytes for é.
      ('ab', [261, 3 + 0x62]),
      ('é', [263, 3 + 0xC3, 3 + 0xA9]),
      ('\n', [263, 3 + 10]),
      ('', []),
  )
  def test_ids_by_hand_and_back(self, text, ids):
    self.assertEqual(self.ids(text), ids)
    self.assertEqual(self.made.decode(ids, skip_special_tokens=False), text)

  def test_special_tokens(self):
    self.assertEqual(self.made.encode('the').ids, [1, 262])
    self.assertEqual(self.made.encode('the', 'a').ids, [1, 262, 1, 261])
    self.assertEqual(self.ids('a</s>'), [261, 2])
    self.assertEqual(self.made.decode([0, 1, 2]), '')

  def test_better_scores_join_first_whatever_their_ids(self):
    pieces = ['<unk>', 'a', 'b', 'c', 'ab', 'bc', '▁']
    kinds = [KIND.UNKNOWN, *[KIND.NORMAL] * 6]
    for scores, ids in (
        ([0, 0, 0, 0, -1, -2, 0], [4, 3]),  # ab + c
        ([0, 0, 0, 0, -2, -1, 0], [1, 5]),  # a + bc
    ):
      made = piece_tokenizer.build(
          pieces, scores, kinds, bos=None, add_prefix=False
      )
      self.assertEqual(made.encode('abc').ids, ids)
      self.assertEqual(made.decode(ids), 'abc')

  def test_a_piece_of_the_user_is_never_cut_or_joined(self):
    pieces = ['<unk>', 'a', 'b', 'ab', '▁', 'bb']
    kinds = [KIND.UNKNOWN, *[KIND.NORMAL] * 4, KIND.USER]
    made = piece_tokenizer.build(
        pieces, [0, 0, 0, -1, 0, 0], kinds, bos=None, add_prefix=False
    )
    self.assertEqual(made.encode('abb').ids, [1, 5])
    self.assertEqual(made.decode([1, 5]), 'abb')

  @parameterized.parameters(
      (['<unk>', 'a', 'a'], 1, "the piece 'a' twice"),
      (['a', 'b', 'c'], 0, 'no piece for what is unknown'),
  )
  def test_what_makes_no_tokenizer_is_refused(self, pieces, unknown, line):
    kinds = [KIND.UNKNOWN] * unknown + [KIND.NORMAL] * (3 - unknown)
    with self.assertRaisesRegex(ValueError, line):
      piece_tokenizer.build(pieces, [0, 0, 0], kinds, bos=None)

  @parameterized.parameters(
      (lambda data: data, 300, 'the model 300 tokens'),
      (lambda data: data[:-1], None, 'no tokenizer.bin of llama2.c'),
      (lambda data: data[:100], None, 'it has 7 pieces'),
      (lambda data: data[:4], None, 'it has 0 pieces'),
      (lambda data: data.replace(b'</s>', b'</t>'), None, 'piece 2 is'),
      (lambda data: data.replace(b'<0x07>', b'\xff<0x7>'), None, 'utf-8'),
  )
  def test_another_file_is_refused(self, change, size, line):
    self.file.write_bytes(change(tokenizer_bin()))
    with self.assertRaisesRegex(ValueError, line):
      llama2c.read(self.file, size or self.size)


if __name__ == '__main__':
  absltest.main()
