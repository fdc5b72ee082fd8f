"""tokenizer.bin of the llama2.c project.

An int32 (bytes of the longest piece), then for every id a float32 score, an
int32 length and the piece in UTF-8; all little-endian. Spaces are written out,
and begin and end of text have line ends around them.
"""

import pathlib
import struct

import tokenizers

from rl_tpu.text import piece_tokenizer

UNKNOWN, BEGIN, END = '<unk>', '<s>', '</s>'
_SPECIAL = (UNKNOWN, BEGIN, END)  # Ids 0, 1 and 2.
_BYTES = range(3, 259)
_HEAD, _ENTRY = struct.Struct('<i'), struct.Struct('<fi')


def read(path: str | pathlib.Path, size: int) -> tokenizers.Tokenizer:
  """Reads the tokenizer of a model with `size` tokens.

  Raises:
    ValueError: the file is of another form or for another size.
  """
  entries = _entries(pathlib.Path(path).read_bytes(), path)
  if len(entries) != size:
    raise ValueError(
        f'{path}: it has {len(entries)} pieces, the model {size} tokens; the'
        ' tokenizer is of another model.'
    )
  pieces = [piece.replace(' ', piece_tokenizer.SPACE) for piece, _ in entries]
  kinds = [piece_tokenizer.Kind.NORMAL] * size
  for index, name in enumerate(_SPECIAL):
    if pieces[index].strip() != name:
      raise ValueError(
          f'{path}: piece {index} is {pieces[index]!r}, not {name!r}; it is no'
          ' tokenizer of llama2.c.'
      )
    pieces[index] = name
    kinds[index] = piece_tokenizer.Kind.CONTROL
  kinds[0] = piece_tokenizer.Kind.UNKNOWN
  for index in _BYTES:
    kinds[index] = piece_tokenizer.Kind.BYTE
  scores = [score for _, score in entries]
  return piece_tokenizer.build(pieces, scores, kinds, bos=BEGIN)


def _entries(data: bytes, path) -> list[tuple[str, float]]:
  """Pieces and scores by id."""
  entries, place = [], _HEAD.size
  try:
    while place < len(data):
      score, length = _ENTRY.unpack_from(data, place)
      place += _ENTRY.size + length
      if length < 0 or place > len(data):
        raise ValueError('a piece goes beyond the end')
      entries.append((data[place - length : place].decode('utf-8'), score))
  except (struct.error, ValueError) as error:
    raise ValueError(
        f'{path}: it is no tokenizer.bin of llama2.c: {error}.'
    ) from None
  if len(entries) < _BYTES.stop:
    raise ValueError(
        f'{path}: it has {len(entries)} pieces; a tokenizer.bin of llama2.c'
        f' has at least {_BYTES.stop}.'
    )
  return entries
