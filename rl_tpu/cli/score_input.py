"""The rows of `score`: token ids, checked before the model is loaded."""

import dataclasses
import os
from collections.abc import Sequence

from rl_tpu.records import jsonl


@dataclasses.dataclass(frozen=True)
class Row:
  """One sequence and the line it stands on."""

  ids: list[int]
  line: int


def read(path: str | os.PathLike[str]) -> list[Row]:
  """Reads rows {"ids": [...]}.

  Raises:
    ValueError: no rows, or a row that is not of that form; file and line are
      named.
  """
  rows = []
  for line, data in jsonl.read_lines(path):
    if 'ids' not in data:
      raise ValueError(f'{path}:{line}: the row has no field "ids".')
    ids = data['ids']
    is_list = isinstance(ids, list) and all(type(i) is int for i in ids)
    if not is_list or len(ids) < 2:
      raise ValueError(
          f'{path}:{line}: "ids" must be a list of at least two whole numbers.'
      )
    rows.append(Row(ids, line))
  if not rows:
    raise ValueError(f'{path}: the file has no rows.')
  return rows


def check_ids(
    path: str | os.PathLike[str],
    rows: Sequence[Row],
    *,
    vocab_size: int,
    max_length: int,
) -> None:
  """Refuses ids that the model has no row for, and more than its positions."""
  for row in rows:
    if len(row.ids) > max_length:
      raise ValueError(
          f'{path}:{row.line}: {len(row.ids)} ids, and the model has'
          f' {max_length} positions; cut the row.'
      )
    for token in row.ids:
      if not 0 <= token < vocab_size:
        raise ValueError(
            f'{path}:{row.line}: id {token} is not in the vocabulary of'
            f' {vocab_size} tokens.'
        )
