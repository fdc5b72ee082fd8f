"""Where tokens begin, in characters."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.text import offsets


class StartsTest(parameterized.TestCase):

  def starts(self, *pieces: bytes) -> list[int]:
    decode = lambda ids: b''.join(pieces[i] for i in ids).decode(
        errors='replace'
    )
    ids = np.arange(len(pieces))
    return offsets.starts(ids, decode(ids), decode).tolist()

  @parameterized.parameters(
      ((b'ab', b'', b'c', b'de'), [0, 2, 2, 3]),
      # Two and four bytes of one letter; then bytes that are no letter.
      ((b'a', b'\xc3', b'\xa9b', b'c'), [0, 1, 1, 3]),
      ((b'\xf0', b'\x9f', b'\x99', b'\x82', b'x'), [0, 0, 0, 0, 1]),
      ((b'\xff', b'a', b'b'), [0, 1, 2]),
      ((b'\xff', b'\xff', b'\xff', b'\xff', b'\xff', b'a'), [0, 1, 2, 3, 4, 5]),
      # The text itself holds the sign of a broken letter.
      (('\ufffd'.encode(), b'a'), [0, 1]),
      ((b'a', b'\xc3'), [0, 1]),
      ((), []),
  )
  def test_first_characters(self, pieces, expected):
    self.assertEqual(self.starts(*pieces), expected)

  def test_a_decoder_that_writes_a_space_between_tokens(self):
    words = ['one', 'two', 'three']
    decode = lambda ids: ' '.join(words[i] for i in ids)
    ids = np.arange(3)
    # 'one two three': what is decoded of the first two ends before the space.
    self.assertEqual(
        offsets.starts(ids, decode(ids), decode).tolist(), [0, 3, 7]
    )

  @parameterized.parameters(
      (0, 1, (0, 1)), (0, 2, (0, 1)), (1, 3, (0, 2)), (2, 3, (1, 2)),
      (2, 4, (1, 4)), (3, 4, (2, 4)), (4, 6, (4, 5)), (5, 6, (4, 5)),
  )
  def test_the_tokens_of_a_span(self, start, stop, expected):
    # Characters of five tokens: two, one, one that two tokens make, two.
    starts = np.array([0, 2, 3, 3, 4])
    self.assertEqual(offsets.token_span(starts, start, stop), expected)


if __name__ == '__main__':
  absltest.main()
