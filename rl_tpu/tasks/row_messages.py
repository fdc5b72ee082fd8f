"""The messages of a row: what chat templates read of them, and nothing else.

A member that no template is given would be dropped without a word (K49), so
another one is a fault of the row.
"""

from typing import Any

from rl_tpu.tasks import row_files

ROLES = ('system', 'user', 'assistant', 'tool')
_CALL = (
    'an object {"type": "function", "function": {"name", "arguments"}} with an'
    ' optional "id"'
)
# Member -> the roles that it belongs to.
_MEMBERS = {
    'role': ROLES,
    'content': ROLES,
    'reasoning_content': ('assistant',),
    'tool_calls': ('assistant',),
    'tool_call_id': ('tool',),
    'name': ROLES,
}


def read(value: Any) -> list[dict[str, Any]]:
  """Checks messages.

  Args:
    value: a list of objects; a member that is null is as good as none, because
      a Parquet column gives every message the members of all others.

  Returns:
    The messages with the members that are there; arguments of calls as
    objects, because templates write them as JSON themselves.

  Raises:
    ValueError: it is no list of messages; the text goes on after the field's
      name.
  """
  if not isinstance(value, list):
    raise ValueError(
        'is no text and no list of role and content, with roles'
        f' {", ".join(ROLES)}.'
    )
  messages = []
  for number, entry in enumerate(value, start=1):
    try:
      messages.append(_message(entry))
    except ValueError as error:
      raise ValueError(f'has a message {number} that {error}') from None
  if not any(m['content'].strip() for m in messages):
    raise ValueError('is empty.')
  if messages[-1]['role'] == 'assistant':
    raise ValueError('ends with the assistant: nothing is asked.')
  return messages


def _message(entry: Any) -> dict[str, Any]:
  if not isinstance(entry, dict) or entry.get('role') not in ROLES:
    raise ValueError(
        f'is no object with role and content; roles are {", ".join(ROLES)}.'
    )
  made = {k: v for k, v in entry.items() if v is not None and v != []}
  role = made['role']
  for name in made:
    if name not in _MEMBERS:
      raise ValueError(
          f'has {name!r}, which no prompt shows; take it out. Members are'
          f' {", ".join(_MEMBERS)}.'
      )
    if role not in _MEMBERS[name]:
      raise ValueError(
          f'has {name!r} and role {role!r}; it belongs to the role'
          f' {_MEMBERS[name][0]!r}.'
      )
    if name != 'tool_calls' and not isinstance(made[name], str):
      raise ValueError(f'has {name!r} that is no text.')
  if 'tool_calls' in made:
    made['tool_calls'] = _calls(made['tool_calls'])
    made.setdefault('content', '')
  if 'content' not in made:
    raise ValueError("has no 'content'.")
  if role in ('user', 'assistant') and not _says(made):
    raise ValueError('is empty.')
  return made


def _says(message: dict[str, Any]) -> bool:
  return bool(
      message['content'].strip()
      or message.get('reasoning_content', '').strip()
      or message.get('tool_calls')
  )


def _calls(value: Any) -> list[dict[str, Any]]:
  if not isinstance(value, list):
    raise ValueError(f"has 'tool_calls' that is no list; each is {_CALL}.")
  return [_call(entry, number) for number, entry in enumerate(value, start=1)]


def _call(entry: Any, number: int) -> dict[str, Any]:
  """A call that is complete, with its arguments as an object."""
  what = f'has a tool call {number} that'
  if not isinstance(entry, dict) or not isinstance(entry.get('function'), dict):
    raise ValueError(f'{what} has no function; it is {_CALL}.')
  call = {k: v for k, v in entry.items() if v is not None}
  function = {k: v for k, v in call['function'].items() if v is not None}
  unknown = sorted({*call} - {'id', 'type', 'function'})
  unknown += sorted({*function} - {'name', 'arguments'})
  if unknown:
    raise ValueError(f'{what} has {unknown[0]!r}; it is {_CALL}.')
  if call.setdefault('type', 'function') != 'function':
    raise ValueError(f"{what} has type {call['type']!r}; write \"function\".")
  if not isinstance(call.get('id', ''), str):
    raise ValueError(f"{what} has an 'id' that is no text.")
  name = function.get('name')
  if not isinstance(name, str) or not name:
    raise ValueError(f'{what} has no name; it is {_CALL}.')
  arguments = _arguments(function.get('arguments', {}), what, name)
  return call | {'function': {'name': name, 'arguments': arguments}}


def _arguments(value: Any, what: str, name: str) -> dict[str, Any]:
  if isinstance(value, str):
    try:
      value = row_files.parse_json(value)
    except ValueError as error:
      raise ValueError(
          f'{what} has arguments ({name}) that are text and no JSON: {error}.'
      ) from None
  if not isinstance(value, dict):
    raise ValueError(
        f'{what} has arguments ({name}) that are no object, nor its JSON text.'
    )
  return value
