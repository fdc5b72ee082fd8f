"""The tools of a row: descriptions of functions, as chat templates take them.

    {"type": "function", "function": {"name": ..., "parameters": {...}}}

or the inner object alone. They are shown as they stand in the row.
"""

import json
from typing import Any

from rl_tpu.tasks import row_files

_FORM = 'an object {"type": "function", "function": {"name", "parameters"}}'


def read(value: Any) -> tuple[dict[str, Any], ...]:
  """Checks the tools of a row.

  Args:
    value: a list, or its JSON text: the columns of a Parquet file give every
      tool the parameters of all the others.

  Raises:
    ValueError: it is no list of tools; the message goes on after the field's
      name.
  """
  if isinstance(value, str):
    try:
      value = row_files.parse_json(value)
    except ValueError as error:
      raise ValueError(f'is text that is not JSON: {error}.') from error
  if not isinstance(value, list):
    raise ValueError(f'is no list; each tool is {_FORM}.')
  names = set()
  for number, tool in enumerate(value, start=1):
    try:
      name = _name(tool)
    except ValueError as error:
      raise ValueError(f'has a tool {number} that {error}') from None
    if name in names:
      raise ValueError(f'has two tools of the name {name!r}.')
    names.add(name)
  try:
    json.dumps(value, allow_nan=False)
  except (TypeError, ValueError) as error:
    raise ValueError(f'holds what is no JSON value: {error}.') from error
  return tuple(value)


def _name(tool: Any) -> str:
  """The name of a tool that is complete."""
  if not isinstance(tool, dict):
    raise ValueError(f'is no object; write {_FORM}.')
  function, inside = tool, ''
  if 'function' in tool or 'type' in tool:
    if tool.get('type') != 'function':
      raise ValueError(f"has type {tool.get('type')!r}; write \"function\".")
    function, inside = tool.get('function'), ' in its function'
    if not isinstance(function, dict):
      raise ValueError(f'has no function; write {_FORM}.')
  name = function.get('name')
  if not isinstance(name, str) or not name:
    raise ValueError(f'has no name{inside}; write {_FORM}.')
  if not isinstance(function.get('parameters'), dict):
    raise ValueError(
        f'has no object "parameters"{inside} ({name}); write their JSON schema,'
        ' {} where there are none.'
    )
  return name
