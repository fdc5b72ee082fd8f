"""From a row of a user's file to a task, in the layouts users have.

| field | plain | slime | verl |
|---|---|---|---|
| id | id | - | - |
| prompt (text, or messages) | prompt | prompt | prompt |
| messages | messages | messages | messages |
| answer | answer | label | reward_model.ground_truth |
| tools (a list, or its JSON text) | tools | tools | tools |
| family | family | - | ability |
| source | - | - | data_source |
| metadata (an object) | metadata | metadata | extra_info |

A dot goes into an object. Other names are given field by field (`keys`).
"""

from collections.abc import Mapping
from typing import Any

from rl_tpu.records import records
from rl_tpu.tasks import row_files
from rl_tpu.tasks import row_messages
from rl_tpu.tasks import row_tools
from rl_tpu.tasks import row_values
from rl_tpu.text import hashing

FIELDS = (
    'id', 'prompt', 'messages', 'answer', 'tools', 'family', 'source',
    'metadata',
)
_COMMON = {'prompt': 'prompt', 'messages': 'messages', 'tools': 'tools'}
LAYOUTS = {
    'plain': _COMMON
    | {
        'id': 'id', 'answer': 'answer', 'family': 'family',
        'metadata': 'metadata',
    },
    'slime': _COMMON | {'answer': 'label', 'metadata': 'metadata'},
    'verl': _COMMON
    | {
        'answer': 'reward_model.ground_truth', 'family': 'ability',
        'source': 'data_source', 'metadata': 'extra_info',
    },
}
_ABSENT = object()


class Fields:
  """The names that a file uses for our fields."""

  def __init__(
      self, layout: str, keys: Mapping[str, str], source: str, *, prefix: str
  ):
    """Checks the names.

    Args:
      layout: plain, slime or verl.
      keys: names of single fields, which go before the layout's.
      source: name of the data, where a row has none.
      prefix: of the settings in messages, such as `tasks.settings.`.

    Raises:
      ValueError: no such layout or field, or a field without a name.
    """
    if layout not in LAYOUTS:
      raise ValueError(
          f'{prefix}layout = {layout!r}: there is no such layout; there are'
          f' {", ".join(LAYOUTS)}.'
      )
    for field, name in keys.items():
      if field not in FIELDS:
        raise ValueError(
            f'{prefix}keys.{field}: there is no such field; there are'
            f' {", ".join(FIELDS)}.'
        )
      if not isinstance(name, str) or not name:
        raise ValueError(
            f'{prefix}keys.{field} = {name!r}: name a field of the file.'
        )
    self._names = LAYOUTS[layout] | dict(keys)
    self._source = source

  def task(self, row: dict[str, Any], place: str) -> records.Task:
    """The task of a row.

    Args:
      row: as it stands in the file.
      place: file and line, for messages.

    Raises:
      RowFault: a field is missing, of another type, or holds what a record
        or a tokenizer does not take.
    """
    self._check_values(row, place)
    payload = {
        'messages': self._messages(row, place),
        'answer': self._answer(row, place),
    }
    tools = self._tools(row, place)
    task_id = self._optional(row, 'id', place, (str, int))
    if task_id is None:
      shown = {'tools': list(tools)} if tools else {}
      task_id = hashing.of_json(payload | shown)
    source = self._optional(row, 'source', place, str) or self._source
    family = self._optional(row, 'family', place, str) or source
    payload['metadata'] = self._metadata(row, place)
    return records.Task(
        task_id=str(task_id),
        source=source,
        family=family,
        seed=int(hashing.of_text(str(task_id)), 16) % 2**31,
        payload=payload,
        tools=tools,
    )

  def _check_values(self, row: dict[str, Any], place: str) -> None:
    """Before anything else: what follows quotes names and values."""
    for name, value in row.items():
      if found := row_values.problem({name: value}, wide=True):
        raise _fault(place, f'field {name!r} {found}.')
      # An answer or an id is kept as text, however long the number is.
      if not isinstance(value, int) and (found := row_values.problem(value)):
        raise _fault(place, f'field {name!r} {found}.')

  def _get(self, row: dict[str, Any], field: str) -> Any:
    """What the row has; null is the same as nothing."""
    value: Any = row
    name = self._names.get(field, '')
    if name in row:
      value = row[name]
    else:
      for part in name.split('.'):
        value = value.get(part) if isinstance(value, dict) else None
    return _ABSENT if value is None else value

  def _optional(
      self, row: dict[str, Any], field: str, place: str, kinds: Any
  ) -> Any:
    value = self._get(row, field)
    if value is _ABSENT:
      return None
    if isinstance(value, bool) or not isinstance(value, kinds) or value == '':
      raise _fault(place, f'field {self._names[field]!r} is no text.')
    return value

  def _answer(self, row: dict[str, Any], place: str) -> str:
    value, name = self._get(row, 'answer'), self._names['answer']
    if value is _ABSENT:
      raise _fault(
          place, f'field {name!r} is missing; it has {_names(row)}.'
      )
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
      raise _fault(place, f'field {name!r} is no text or number.')
    return str(value)

  def _messages(self, row: dict[str, Any], place: str) -> list[dict[str, Any]]:
    found = [
        (self._names[field], self._get(row, field))
        for field in ('prompt', 'messages')
    ]
    given = [(name, value) for name, value in found if value is not _ABSENT]
    if len(given) != 1:
      names = ' and '.join(repr(name) for name, _ in found)
      raise _fault(
          place,
          f'it needs one of the fields {names}; it has {_names(row)}.',
      )
    ((name, value),) = given
    if isinstance(value, str) and name == self._names['prompt']:
      if not value.strip():
        raise _fault(place, f'field {name!r} is empty.')
      value = [{'role': 'user', 'content': value}]
    try:
      return row_messages.read(value)
    except ValueError as error:
      raise _fault(place, f'field {name!r} {error}') from None

  def _tools(self, row: dict[str, Any], place: str) -> tuple[Any, ...]:
    value = self._get(row, 'tools')
    if value is _ABSENT:
      return ()
    try:
      return row_tools.read(value)
    except ValueError as error:
      name = self._names['tools']
      raise _fault(place, f'field {name!r} {error}') from None

  def _metadata(self, row: dict[str, Any], place: str) -> dict[str, Any]:
    """The metadata field's content, and fields that nothing else names."""
    value = self._get(row, 'metadata')
    if value is _ABSENT:
      value = {}
    if not isinstance(value, dict):
      raise _fault(
          place, f'field {self._names["metadata"]!r} is no object.'
      )
    left = row
    for name in self._names.values():
      left = _without(left, name)
    twice = sorted({*left} & {*value})
    if twice:
      raise _fault(
          place,
          f'field {twice[0]!r} stands in the row and in'
          f' {self._names["metadata"]!r}; one would be lost.',
      )
    return left | value


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
  """The row without a field; what stands beside it in its object stays."""
  if name in row or '.' not in name:
    return {k: v for k, v in row.items() if k != name}
  first, _, rest = name.partition('.')
  inner = row.get(first)
  if not isinstance(inner, dict):
    return row
  inner = _without(inner, rest)
  return {k: v for k, v in row.items() if k != first} | (
      {first: inner} if inner else {}
  )


def _names(row: dict[str, Any]) -> str:
  return ', '.join(row) or 'none'


def _fault(place: str, what: str) -> row_files.RowFault:
  return row_files.RowFault(f'{place}: {what}')
