"""From the parts of a reply's text to the types of its tokens (L19)."""

from collections.abc import Callable, Sequence

import numpy as np

from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import token_types

# (start, stop, type) of characters; of two that overlap the later one holds.
Parts = Sequence[tuple[int, int, str]]
Parse = Callable[[str], Parts]


def types(
    ids: np.ndarray,
    text: str,
    tokenizer: tokenizer_lib.Tokenizer,
    parse: Parse | None,
) -> np.ndarray:
  """The type of every token of a reply, int32 [len(ids)].

  A token has the type of its first character; one without a part is text.

  Args:
    ids: the reply as sampled.
    text: the same, decoded.
    tokenizer: that decoded it.
    parse: the environment's parser; None says nothing.

  Raises:
    ValueError: a part with a type that does not exist.
  """
  out = np.full(len(ids), token_types.TEXT, np.int32)
  parts = parse(text) if parse is not None else ()
  if not parts:
    return out
  by_character = np.full(len(text) + 1, token_types.TEXT, np.int32)
  for start, stop, name in parts:
    if name not in token_types.NAMES:
      raise ValueError(
          f'parse_reply gave the token type {name!r}; there are'
          f' {", ".join(token_types.NAMES)}.'
      )
    by_character[start:stop] = token_types.NAMES.index(name)
  starts = np.minimum(_starts(ids, text, tokenizer), len(text))
  return by_character[starts]


def _starts(
    ids: np.ndarray, text: str, tokenizer: tokenizer_lib.Tokenizer
) -> np.ndarray:
  """The first character of every token."""
  pieces = [tokenizer.decode(ids[i : i + 1]) for i in range(len(ids))]
  if ''.join(pieces) != text:
    # Tokens that make characters only together: read the beginnings whole.
    lengths = [len(tokenizer.decode(ids[:i])) for i in range(len(ids))]
    return np.asarray(lengths, np.int64)
  lengths = np.asarray([len(piece) for piece in pieces], np.int64)
  return np.cumsum(lengths) - lengths
