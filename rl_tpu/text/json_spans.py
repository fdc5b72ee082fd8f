"""JSON objects inside a text, with the places of their keys and values."""

import dataclasses
import json
import math
from typing import Any


class NotJson(ValueError):
  """There is no JSON object at that place."""


@dataclasses.dataclass(frozen=True)
class Member:
  """A member of an object.

  Attributes:
    key: as a string.
    key_span: of its characters, without the quotes.
    value: as Python has it.
    value_span: of its characters; without the quotes where it is a string.
    value_start: where the value begins, quotes included.
  """

  key: str
  key_span: tuple[int, int]
  value: Any
  value_span: tuple[int, int]
  value_start: int


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is no JSON value')


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise ValueError(f'{text} is too large a number')
  return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) != len(pairs):
    raise ValueError('an object has a key twice')
  return found


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_finite,
    object_pairs_hook=_without_duplicates,
)


def value_at(text: str, at: int) -> tuple[Any, int]:
  """The JSON value that begins at a place, and where it ends.

  Raises:
    NotJson: there is none, or it has a key twice or a number that is none.
  """
  try:
    return _DECODER.raw_decode(text, at)
  except (ValueError, RecursionError) as error:
    raise NotJson(str(error)) from error


def value_of(text: str) -> Any:
  """The value that the whole text is, spaces around it aside.

  Raises:
    NotJson: it is none.
  """
  value, stop = value_at(text, after_space(text, 0))
  if after_space(text, stop) != len(text):
    raise NotJson('something follows the value')
  return value


def members_at(text: str, at: int) -> tuple[list[Member], int]:
  """The members of the object that begins at a place, and where it ends.

  Raises:
    NotJson: there is no whole object, or one with a key twice.
  """
  at = after_space(text, _expect(text, at, '{'))
  found: list[Member] = []
  if text[at : at + 1] == '}':
    return found, at + 1
  while True:
    found.append(_member(text, after_space(text, at)))
    if any(m.key == found[-1].key for m in found[:-1]):
      raise NotJson(f'the key {found[-1].key!r} comes twice')
    at = after_space(text, found[-1].value_span[1])
    if isinstance(found[-1].value, str):
      at = after_space(text, at + 1)
    if text[at : at + 1] == '}':
      return found, at + 1
    at = _expect(text, at, ',')


def _member(text: str, start: int) -> Member:
  _expect(text, start, '"')
  key, stop = value_at(text, start)
  at = after_space(text, _expect(text, after_space(text, stop), ':'))
  value, end = value_at(text, at)
  quote = int(isinstance(value, str))
  return Member(
      key, (start + 1, stop - 1), value, (at + quote, end - quote), at
  )


def after_space(text: str, at: int) -> int:
  """The first place from `at` on that holds no JSON white space."""
  while at < len(text) and text[at] in ' \t\n\r':
    at += 1
  return at


def _expect(text: str, at: int, what: str) -> int:
  if text[at : at + 1] != what:
    found = repr(text[at]) if at < len(text) else 'the end'
    raise NotJson(f'{what} expected, {found} found')
  return at + 1
