"""Names, types and texts of the fields of a settings tree."""

import ast
import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NONE_WORDS = ('None', 'none', 'null')


def shown(name: str) -> str:
  """The name a user writes: `kl.in_` is `kl.in`."""
  return name.rstrip('_')


def by_shown_name(settings: type) -> dict[str, str]:
  """Shown name -> attribute name of the fields of a dataclass type."""
  return {shown(f.name): f.name for f in dataclasses.fields(settings)}


def annotations(settings: type) -> dict[str, Any]:
  """Attribute name -> annotation of the fields of a dataclass type."""
  hints = typing.get_type_hints(settings)
  return {f.name: hints[f.name] for f in dataclasses.fields(settings)}


def section_type(annotation: Any) -> type | None:
  """The dataclass behind `Config` or `Config | None`; None for a leaf."""
  for option in options(annotation):
    if isinstance(option, type) and dataclasses.is_dataclass(option):
      return option
  return None


def options(annotation: Any) -> tuple[Any, ...]:
  """The members of a union, or the annotation alone."""
  if typing.get_origin(annotation) in (typing.Union, types.UnionType):
    return typing.get_args(annotation)
  return (annotation,)


def is_mapping(annotation: Any) -> bool:
  """True for a field that holds free names (`reward.weights`)."""
  return typing.get_origin(annotation) is Mapping or annotation is Mapping


def paths(settings: Any, prefix: str = '') -> Iterator[str]:
  """Dotted names of all leaves of a settings tree; absent sections left out."""
  for name, annotation in annotations(type(settings)).items():
    value = getattr(settings, name)
    if section_type(annotation) is None:
      yield prefix + shown(name)
    elif value is not None:
      yield from paths(value, f'{prefix}{shown(name)}.')


def nearest(wrong: str, names: Sequence[str]) -> str:
  """The name a user most likely meant; the last part of a path weighs most.

  A section counts by its own name, and a name of several words by its first:
  `gae.lamda` is closer to `gae.lambda_policy.fixed` than to `gae.gamma`.
  """
  depth = wrong.count('.') + 1

  def likeness(name: str) -> float:
    if depth == 1:
      return _likeness(wrong, name)
    section = '.'.join(name.split('.')[:depth])
    found = max(_likeness(wrong, name), 0.95 * _likeness(wrong, section))
    # A word of one or two letters is like too much.
    if len(wrong.rsplit('.', 1)[-1]) > 2:
      head, dot, last = section.rpartition('.')
      word = last.split('_', 1)[0]
      found = max(found, 0.95 * _likeness(wrong, head + dot + word))
    return found

  return max(names, key=likeness, default='')


def _likeness(wrong: str, name: str) -> float:
  ratio = lambda a, b: difflib.SequenceMatcher(None, a, b).ratio()
  last = lambda path: path.rsplit('.', 1)[-1]
  return ratio(wrong, name) + 1.5 * ratio(last(wrong), last(name))


def describe(annotation: Any) -> str:
  """What a value of this type looks like, for messages."""
  words = {int: 'a whole number', float: 'a number', str: 'text'}
  parts = []
  for option in options(annotation):
    if option is bool:
      parts.append('true or false')
    elif option is types.NoneType:
      parts.append('None')
    elif typing.get_origin(option) is tuple:
      parts.append(f'a list ({describe(typing.get_args(option)[0])} each)')
    elif is_mapping(option):
      parts.append('a mapping {name: value}')
    elif section_type(option):
      parts.append(f'a {option.__name__}')
    else:
      parts.append(words.get(option, str(option)))
  return ' or '.join(parts)


def parse(text: str, annotation: Any) -> Any:
  """The value of a text under an annotation.

  Raises:
    ValueError: the text is no such value.
  """
  choices = options(annotation)
  if types.NoneType in choices and text in NONE_WORDS:
    return None
  for option in choices:
    if option is types.NoneType:
      continue
    try:
      return _parse_one(text, option)
    except (ValueError, SyntaxError, TypeError):
      continue
  raise ValueError(f'{text!r} is not {describe(annotation)}.')


def _parse_one(text: str, option: Any) -> Any:
  if option is str:
    return text
  if option is bool:
    return (
        {'true': True, 'false': False}[text.lower()]
        if (text.lower() in ('true', 'false'))
        else _refuse(text)
    )
  if option is int:
    return int(text)
  if option is float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)
  if typing.get_origin(option) is tuple:
    return _parse_tuple(text, typing.get_args(option)[0])
  if is_mapping(option):
    value = ast.literal_eval(text)
    return check(value, option)
  return _refuse(text)


def _refuse(text: str) -> Any:
  raise ValueError(text)


def _parse_tuple(text: str, element: Any) -> tuple[Any, ...]:
  stripped = text.strip()
  if stripped[:1] in ('(', '['):
    value = ast.literal_eval(stripped)
    if not isinstance(value, (tuple, list)):
      value = (value,)
    return tuple(check(v, element) for v in value)
  if not stripped and element is not str:
    return ()
  return tuple(parse(part, element) for part in text.split(','))


def free_value(text: str, before: Any) -> Any:
  """The value of a text for a name whose type nobody declared.

  A name that already holds text keeps text (`1e5`, `true`); anything else is
  read as a Python value, and as text where it is none.

  Raises:
    ValueError: the name holds a number or a truth value, the text is neither.
  """
  if isinstance(before, str):
    return text
  if isinstance(before, bool):
    return parse(text, bool)
  if isinstance(before, int):
    try:
      return parse(text, int)
    except ValueError:
      return parse(text, float)
  if isinstance(before, float):
    return parse(text, float)
  if text in NONE_WORDS:
    return None
  if text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def check(value: Any, annotation: Any) -> Any:
  """The value, where it fits the annotation; lists become tuples.

  Raises:
    ValueError: it does not fit.
  """
  for option in options(annotation):
    try:
      return _check_one(value, option)
    except ValueError:
      continue
  raise ValueError(f'{value!r} is not {describe(annotation)}.')


def _check_one(value: Any, option: Any) -> Any:
  if option is Any or value is None and option is types.NoneType:
    return value
  if typing.get_origin(option) is tuple:
    if not isinstance(value, (tuple, list)):
      return _refuse(str(value))
    return tuple(check(v, typing.get_args(option)[0]) for v in value)
  if is_mapping(option):
    return _check_mapping(value, option)
  if option is float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else _refuse(str(value))
  if option is int:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return value if is_int else _refuse(str(value))
  if isinstance(option, type) and isinstance(value, option):
    return value
  return _refuse(str(value))


def _check_mapping(value: Any, option: Any) -> dict[str, Any]:
  if not isinstance(value, Mapping):
    return _refuse(str(value))
  element = (typing.get_args(option) or (str, Any))[1]
  if not all(isinstance(name, str) for name in value):
    return _refuse(str(value))
  return {name: check(v, element) for name, v in value.items()}
