"""What a value of a row or of a payload may be: JSON that can be encoded."""

import math
from typing import Any

# Far more than data has, and far from what a JSON library can still walk.
MAX_DEPTH = 64
# Integers that every reader of the records takes.
_INTEGERS = range(-(2**63), 2**64)


def problem(value: Any, *, wide: bool = False) -> str:
  """What is wrong inside a value, in words; empty where nothing is.

  Args:
    value: of any kind.
    wide: integers may have more than 64 bits.
  """
  # A stack of its own: what is too deep must not end the interpreter's.
  left = [(value, '', 0)]
  while left:
    entry, path, depth = left.pop()
    if depth > MAX_DEPTH:
      return f'is nested more than {MAX_DEPTH} levels deep'
    if isinstance(entry, dict):
      for key, inner in entry.items():
        if not isinstance(key, str):
          return f'holds {key!r}{_where(path)} as a name, which is no text'
        if found := _text_problem(key):
          return f'has a name{_where(path)} that {found}'
        left.append((inner, f'{path}.{key}' if path else key, depth + 1))
    elif isinstance(entry, (list, tuple)):
      left += [
          (inner, f'{path}[{place}]', depth + 1)
          for place, inner in enumerate(entry)
      ]
    elif found := _plain_problem(entry, wide):
      return f'{found}{_where(path)}'
  return ''


def _where(path: str) -> str:
  return f' at {path!r}' if path else ''


def _plain_problem(value: Any, wide: bool) -> str:
  if isinstance(value, str):
    return _text_problem(value)
  if value is None or isinstance(value, bool):
    return ''
  if isinstance(value, int):
    fits = wide or value in _INTEGERS
    return '' if fits else 'holds an integer of more than 64 bits'
  if isinstance(value, float):
    return '' if math.isfinite(value) else f'holds {value}, no finite number'
  return f'holds a {type(value).__name__}, which is no JSON value'


def _text_problem(text: str) -> str:
  try:
    text.encode('utf-8')
  except UnicodeEncodeError as error:
    half = ascii(text[error.start])
    return f'holds half of a surrogate pair ({half}), which is no letter'
  return ''
