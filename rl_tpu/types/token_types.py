"""What kind of token the policy sampled (L19)."""

from collections.abc import Sequence

import numpy as np

# A token's type is an index into this tuple; unknown is text.
NAMES = (
    'text',
    'structure',
    'tool_name',
    'arg_key',
    'arg_value',
    'stop',
    'summary',
)
TEXT = NAMES.index('text')
TOOL_NAME = NAMES.index('tool_name')
STOP = NAMES.index('stop')
SUMMARY = NAMES.index('summary')


def of_parts(parts: Sequence[tuple[int, int, str]], length: int) -> np.ndarray:
  """The type of every character of a text, and text after its end.

  Args:
    parts: (start, stop, type) of characters; of two that overlap the later one
      holds.
    length: of the text.

  Returns:
    int32 [length + 1].

  Raises:
    ValueError: a part with a type that does not exist.
  """
  out = np.full(length + 1, TEXT, np.int32)
  for start, stop, name in parts:
    if name not in NAMES:
      raise ValueError(
          f'there is no token type {name!r}; there are {", ".join(NAMES)}.'
      )
    out[start:stop] = NAMES.index(name)
  return out
