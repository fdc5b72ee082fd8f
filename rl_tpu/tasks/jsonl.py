"""Tasks from JSONL files, one row per task."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl_tpu.records import records
from rl_tpu.text import hashing

SPLITS = ('train', 'eval')
FIELDS = ('id', 'prompt', 'messages', 'answer', 'family')
ROLES = ('system', 'user', 'assistant', 'tool')


class JsonlTasks(Sequence):
  """Rows `{id, prompt | messages, answer}` of a file per split.

  Every row is checked when the source is built; a faulty one is named by file
  and line. `id` may be absent: then the row's content stands for it. Further
  fields stay in the task's payload as `metadata`.
  """

  def __init__(
      self,
      split: str = 'train',
      *,
      train_file: str = '',
      eval_file: str = '',
      keys: Mapping[str, str] | None = None,
      source: str = 'jsonl',
  ):
    """Reads and checks a split's file.

    Args:
      split: train or eval.
      train_file: rows of train.
      eval_file: rows of eval.
      keys: names that the file uses, by our field: {'prompt': 'question'}.
      source: name of the data in records and reports.

    Raises:
      ValueError: another split, no file, an unknown field, or a faulty row.
    """
    if split not in SPLITS:
      raise ValueError(f'split = {split!r}: it is train or eval.')
    name = f'tasks.settings.{split}_file'
    path = pathlib.Path(train_file if split == 'train' else eval_file)
    if not path.is_file():
      raise ValueError(f'{name} = {str(path)!r}: there is no such file.')
    keys = dict(keys or {})
    for field in keys:
      if field not in FIELDS:
        raise ValueError(
            f'tasks.settings.keys.{field}: there is no such field; there are'
            f' {", ".join(FIELDS)}.'
        )
    self._path = path
    self._names = {field: keys.get(field, field) for field in FIELDS}
    self._source = source
    self._places = self._check()
    if not self._places:
      raise ValueError(f'{name} = {str(path)!r}: it has no rows.')

  def __len__(self) -> int:
    return len(self._places)

  def __getitem__(self, index: int) -> records.Task:
    """The task of a row.

    Raises:
      IndexError: outside the file.
    """
    line, offset = self._places[index]
    with self._path.open('rb') as file:
      file.seek(offset)
      return self._task(self._row(file.readline(), line), line)

  def indices_by_source(self) -> dict[str, range]:
    """Every row is of one source (D4)."""
    return {self._source: range(len(self))}

  def _check(self) -> list[tuple[int, int]]:
    """Line number and byte offset of each row, all of them checked."""
    places: list[tuple[int, int]] = []
    lines: dict[str, int] = {}
    offset = 0
    with self._path.open('rb') as file:
      for line, data in enumerate(file, start=1):
        if data.strip():
          task_id = self._task(self._row(data, line), line).task_id
          if task_id in lines:
            raise self._fault(
                line, f'id {task_id!r} is that of line {lines[task_id]} too.'
            )
          lines[task_id] = line
          places.append((line, offset))
        offset += len(data)
    return places

  def _fault(self, line: int, what: str) -> ValueError:
    return ValueError(f'{self._path}:{line}: {what}')

  def _row(self, data: bytes, line: int) -> dict[str, Any]:
    try:
      row = json.loads(data)
    except ValueError as error:
      raise self._fault(line, f'not JSON: {error}.') from error
    if not isinstance(row, dict):
      raise self._fault(line, 'not a JSON object.')
    return row

  def _task(self, row: dict[str, Any], line: int) -> records.Task:
    names = self._names
    messages = self._messages(row, line)
    answer = row.get(names['answer'])
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
      raise self._fault(
          line, f'field {names["answer"]!r} is missing or is no text or number.'
      )
    payload = {'messages': messages, 'answer': str(answer)}
    task_id = row.get(names['id'], hashing.of_json(payload))
    if not isinstance(task_id, (str, int)) or task_id == '':
      raise self._fault(line, f'field {names["id"]!r} is no text.')
    known = set(names.values())
    payload['metadata'] = {k: v for k, v in row.items() if k not in known}
    return records.Task(
        task_id=str(task_id),
        source=self._source,
        family=str(row.get(names['family'], self._source)),
        seed=int(hashing.of_text(str(task_id)), 16) % 2**31,
        payload=payload,
    )

  def _messages(self, row: dict[str, Any], line: int) -> list[dict[str, str]]:
    prompt, several = self._names['prompt'], self._names['messages']
    if (prompt in row) == (several in row):
      raise self._fault(
          line, f'it needs one of the fields {prompt!r} and {several!r}.'
      )
    if prompt in row:
      if not isinstance(row[prompt], str) or not row[prompt]:
        raise self._fault(line, f'field {prompt!r} is no text.')
      return [{'role': 'user', 'content': row[prompt]}]
    messages = row[several]
    is_list = isinstance(messages, list) and bool(messages)
    if not is_list or not all(map(_is_message, messages)):
      raise self._fault(
          line,
          f'field {several!r} is no list of role and content, with roles'
          f' {", ".join(ROLES)}.',
      )
    return [{'role': m['role'], 'content': m['content']} for m in messages]


def _is_message(entry: Any) -> bool:
  return (
      isinstance(entry, dict)
      and entry.get('role') in ROLES
      and isinstance(entry.get('content'), str)
  )
