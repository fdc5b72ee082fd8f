"""The one form in which a worker and its parent write what they tell: JSON.

A worker runs code that is not the run's, so nothing that it sends may run code
here. What comes is text under limits, then lists, numbers and texts, and last
the records of a fixed table, whose fields are declared. The other direction has
the same form, so there is one to read and to test.

Whether a field holds what its protocol says is checked where the answer is
used (`rollout.answers`), for environments of this process alike.
"""

import dataclasses
import enum
import functools
import importlib
import json
import numbers
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 128
MAX_VALUES = 200_000
MAX_DIGITS = 400

# By import path, as these are of higher floors, and a worker loads only those
# that it needs. Nothing that is received adds to it or chooses beyond it.
_PROTOCOL = 'rl_tpu.environments.protocol'
_KINDS = {
    'Task': 'rl_tpu.records.records:Task',
    'Message': f'{_PROTOCOL}:Message',
    'ToolCall': f'{_PROTOCOL}:ToolCall',
    'Observation': f'{_PROTOCOL}:Observation',
    'Action': f'{_PROTOCOL}:Action',
    'Step': f'{_PROTOCOL}:Step',
    'End': f'{_PROTOCOL}:End',
    'Score': 'rl_tpu.verifiers.protocol:Score',
    'Termination': 'rl_tpu.types.termination:Termination',
    'AbortCause': 'rl_tpu.types.termination:AbortCause',
    'FaultCause': 'rl_tpu.types.termination:FaultCause',
}
# A level of a mapping is three of the text.
_DEPTH = MAX_DEPTH // 3
_TUPLE, _DICT = 'tuple', 'dict'
_BRACKET = re.compile(rb'[\[\]{}]')
_QUOTES = 10  # Of a value: its own, those of its name, and of its kind.


def packed(value: Any) -> bytes:
  """Writes a value.

  Raises:
    TypeError: it is, or holds, what is neither plain nor in the table.
    ValueError: it is nested too deeply, or holds half a surrogate pair.
  """
  text = json.dumps(_plain(value, 0), ensure_ascii=False)
  return text.encode('utf-8')


def unpacked(data: bytes) -> Any:
  """Reads what `packed` wrote.

  Raises:
    ValueError: it is anything else, or is beyond a limit.
  """
  _check_limits(data)
  try:
    plain = json.loads(data.decode('utf-8'), parse_int=_integer)
  except RecursionError as error:
    raise ValueError('it is nested too deeply.') from error
  return _value(plain)


def _plain(value: Any, depth: int) -> Any:
  if depth > _DEPTH:
    raise ValueError(f'it is nested more than {_DEPTH} deep.')
  if isinstance(value, enum.Enum):
    return {'is': _name(value), 'of': value.value}
  if value is None or isinstance(value, (bool, str)):
    return value
  if isinstance(value, numbers.Integral):
    return int(value)
  if isinstance(value, numbers.Real):
    return float(value)
  if isinstance(value, list):
    return [_plain(entry, depth + 1) for entry in value]
  if isinstance(value, tuple):
    return {'is': _TUPLE, 'of': [_plain(v, depth + 1) for v in value]}
  if isinstance(value, Mapping):
    items = value.items()
    pairs = [[_plain(k, depth + 1), _plain(v, depth + 1)] for k, v in items]
    return {'is': _DICT, 'of': pairs}
  if dataclasses.is_dataclass(value):
    fields = {
        field.name: _plain(getattr(value, field.name), depth + 1)
        for field in dataclasses.fields(value)
    }
    return {'is': _name(value), 'of': fields}
  raise TypeError(f'{_described(value)} cannot be sent: {_ALLOWED}.')


_ALLOWED = (
    'JSON values, tuples and the records of the protocol are, and no subclass'
    ' of those'
)


def _described(value: Any) -> str:
  cls = type(value)
  return f'an object of {cls.__module__}.{cls.__qualname__}'


def _name(value: Any) -> str:
  name = type(value).__name__
  if name not in _KINDS or _kind(name) is not type(value):
    raise TypeError(f'{_described(value)} cannot be sent: {_ALLOWED}.')
  return name


@functools.cache
def _kind(name: str) -> type:
  module, _, attribute = _KINDS[name].partition(':')
  return getattr(importlib.import_module(module), attribute)


def _check_limits(data: bytes) -> None:
  """Bounds depth and number of values before anything is built."""
  if data.count(b'[') + data.count(b'{') <= MAX_DEPTH:
    if data.count(b',') < MAX_VALUES:
      return  # So it is within the limits, whatever its texts hold.
  # Every second part between quotes is no text, once no quote is escaped.
  bare = data.replace(b'\\\\', b'').replace(b'\\"', b'')
  if bare.count(b'"') > _QUOTES * MAX_VALUES:
    raise ValueError(f'it holds more than {MAX_VALUES} values.')
  bare = b''.join(bare.split(b'"')[::2])
  if sum(bare.count(mark) for mark in (b'[', b'{', b',')) > MAX_VALUES:
    raise ValueError(f'it holds more than {MAX_VALUES} values.')
  depth = 0
  for found in _BRACKET.finditer(bare):
    depth += 1 if found[0] in b'[{' else -1
    if depth > MAX_DEPTH:
      raise ValueError(f'it is nested more than {MAX_DEPTH} deep.')


def _integer(digits: str) -> int:
  if len(digits) > MAX_DIGITS:
    raise ValueError(f'an integer in it has {len(digits)} digits.')
  return int(digits)


def _value(plain: Any) -> Any:
  if isinstance(plain, str):
    return _text(plain)
  if isinstance(plain, list):
    return [_value(entry) for entry in plain]
  if not isinstance(plain, dict):
    return plain
  if plain.keys() != {'is', 'of'} or not isinstance(plain['is'], str):
    raise ValueError('it holds an object that is of no kind.')
  name, of = plain['is'], plain['of']
  if name == _TUPLE and isinstance(of, list):
    return tuple(_value(entry) for entry in of)
  if name == _DICT and isinstance(of, list):
    return _mapping(of)
  if name not in _KINDS:
    raise ValueError(f'it holds a {name:.40}, which is of no kind.')
  kind = _kind(name)
  if issubclass(kind, enum.Enum):
    return _member(kind, of)
  return _record(kind, of)


def _text(text: str) -> str:
  if not text.isascii():
    text.encode('utf-8')  # Half a surrogate pair is a UnicodeError.
  return text


def _mapping(pairs: list[Any]) -> dict[Any, Any]:
  made = {}
  for pair in pairs:
    if not isinstance(pair, list) or len(pair) != 2:
      raise ValueError('it holds a mapping with an entry that is no pair.')
    key, value = pair
    if isinstance(key, (list, dict)):
      raise ValueError('it holds a mapping with a key that is none.')
    made[_value(key)] = _value(value)
  return made


def _member(kind: Any, value: Any) -> Any:
  if not isinstance(value, str):
    raise ValueError(f'it holds a {kind.__name__} that is no text.')
  return kind(_text(value))


def _record(kind: Any, values: Any) -> Any:
  """A record of declared fields; what it lacks has to have a default."""
  if not isinstance(values, dict):
    raise ValueError(f'it holds a {kind.__name__} without fields.')
  fields = {field.name: field for field in dataclasses.fields(kind)}
  if surplus := sorted(values.keys() - fields.keys()):
    raise ValueError(f'a {kind.__name__} in it has a {surplus[0]:.40}.')
  absent = dataclasses.MISSING
  for name, field in fields.items():
    has_default = (
        field.default is not absent or field.default_factory is not absent
    )
    if name not in values and not has_default:
      raise ValueError(f'a {kind.__name__} in it has no {name}.')
  return kind(**{name: _value(value) for name, value in values.items()})
