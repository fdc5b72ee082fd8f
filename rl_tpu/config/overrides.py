"""Overrides from the command line: `path=value` onto a settings tree."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from rl_tpu.config import fields
from rl_tpu.config import schema


def apply(
    config: schema.ExperimentConfig, assignments: Sequence[str]
) -> schema.ExperimentConfig:
  """Applies `path=value` texts in order; a later one wins.

  The type is that of the field: `None` empties an optional field, text stays
  text, `false` is False. In a field of free names the rest of the path is the
  name (`reward.weights.tool_valid=0.1`, `environment.settings.problems=4`).

  Args:
    config: the settings to start from; it is not changed.
    assignments: `path=value` each.

  Returns:
    The new settings.

  Raises:
    ValueError: no such field (with the nearest name), or a value of another
      type.
  """
  for assignment in assignments:
    path, equals, text = assignment.partition('=')
    path = path.strip()
    if not equals or not path:
      raise ValueError(
          f'--set {assignment}: write --set path=value, for example'
          ' --set gae.gamma=0.99.'
      )
    try:
      config = _assign(config, path, path.split('.'), text)
    except _UnknownName as error:
      known = list(fields.paths(config))
      # A name below a value was meant for the value.
      above = [name for name in known if path.startswith(f'{name}.')]
      near = above[0] if above else fields.nearest(path, known)
      raise ValueError(
          f'--set {path}: there is no such setting; did you mean {near}?'
      ) from error
  return config


class _UnknownName(Exception):
  """A path that leads to no field."""


def _assign(settings: Any, path: str, parts: list[str], text: str) -> Any:
  names = fields.by_shown_name(type(settings))
  name = names.get(fields.shown(parts[0]))
  if name is None:
    raise _UnknownName(path)
  annotation = fields.annotations(type(settings))[name]
  before = getattr(settings, name)
  section = fields.section_type(annotation)
  if section is not None:
    value = _assign_section(before, annotation, section, path, parts, text)
  elif fields.is_mapping(annotation) and len(parts) > 1:
    value = _assign_name(before, annotation, path, parts[1:], text)
  elif len(parts) > 1:
    raise _UnknownName(path)
  else:
    value = _parsed(path, text, annotation)
  return dataclasses.replace(settings, **_with_rival(settings, name, value))


def _assign_section(
    before: Any,
    annotation: Any,
    section: type,
    path: str,
    parts: list[str],
    text: str,
) -> Any:
  if len(parts) == 1:
    optional = type(None) in fields.options(annotation)
    if optional and text in fields.NONE_WORDS:
      return None
    inner = ', '.join(f'{path}.{n}' for n in fields.by_shown_name(section))
    raise ValueError(f'--set {path}: a section, not a value; it has {inner}.')
  if before is None:
    raise ValueError(
        f'--set {path}: this experiment has no {parts[0]} section; give it one'
        ' in the experiment file.'
    )
  return _assign(before, path, parts[1:], text)


def _assign_name(
    before: Mapping[str, Any],
    annotation: Any,
    path: str,
    parts: list[str],
    text: str,
) -> dict[str, Any]:
  inner = before.get(parts[0])
  if len(parts) > 1:
    if inner is not None and not isinstance(inner, Mapping):
      raise ValueError(f'--set {path}: {parts[0]} is a value, not a section.')
    value: Any = _assign_name(inner or {}, annotation, path, parts[1:], text)
  else:
    try:
      element = typing.get_args(annotation)[1]
      value = fields.check(fields.free_value(text, inner), element)
    except ValueError as error:
      raise ValueError(f'--set {path}: {error}') from error
  return {**before, parts[0]: value}


def _with_rival(settings: Any, name: str, value: Any) -> dict[str, Any]:
  """Of the two forms of a lambda one is set: the new one empties the other."""
  changes = {name: value}
  if isinstance(settings, schema.LambdaConfig) and value is not None:
    rivals = {'fixed': 'length_adaptive', 'length_adaptive': 'fixed'}
    changes[rivals[name]] = None
  return changes


def _parsed(path: str, text: str, annotation: Any) -> Any:
  try:
    return fields.parse(text, annotation)
  except ValueError as error:
    raise ValueError(f'--set {path}: {error}') from error
