"""Where in a text each of its tokens begins."""

from collections.abc import Callable

import numpy as np

# A character has at most four bytes, so a fourth token completes it.
_MAX_HELD = 3
_INCOMPLETE = '\ufffd'


def starts(
    ids: np.ndarray, text: str, decode: Callable[[np.ndarray], str]
) -> np.ndarray:
  """The index of the first character of every token, int64 [len(ids)].

  Tokens that make a character only together all begin at that character.

  Args:
    ids: of the text.
    text: the same, decoded.
    decode: ids to text.
  """
  out = np.zeros(len(ids), np.int64)
  pieces: list[str] = []
  length = first = 0
  for i in range(len(ids)):
    out[i] = length
    piece = decode(ids[first : i + 1])
    # A token that ends within a character, or stands for no character at all.
    if piece.endswith(_INCOMPLETE) and i - first < _MAX_HELD:
      continue
    if i > first:
      alone = [decode(ids[j : j + 1]) for j in range(first, i + 1)]
      if ''.join(alone) == piece:
        out[first : i + 1] = length + _cumulated(alone)
    pieces.append(piece)
    length += len(piece)
    first = i + 1
  pieces.append(decode(ids[first:]))
  if ''.join(pieces) == text:
    return out
  # A decoder to which a token means something else in another place.
  lengths = [len(decode(ids[:i])) for i in range(len(ids))]
  return np.minimum(np.asarray(lengths, np.int64), len(text))


def _cumulated(pieces: list[str]) -> np.ndarray:
  lengths = np.asarray([len(piece) for piece in pieces], np.int64)
  return np.cumsum(lengths) - lengths


def token_span(
    starts_: np.ndarray, start: int, stop: int
) -> tuple[int, int]:
  """The tokens that hold the characters of [start, stop), in part or whole."""
  first = int(np.searchsorted(starts_, start, 'left'))
  if first == len(starts_) or starts_[first] > start:
    first -= 1
    # The first of those that begin at the same character.
    first = int(np.searchsorted(starts_, starts_[max(first, 0)], 'left'))
  return first, int(np.searchsorted(starts_, stop, 'left'))
