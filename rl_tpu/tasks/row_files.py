"""Files of rows: JSONL, and Parquet with the extra `data`."""

import json
import pathlib
from typing import Any, Protocol

_PARQUET = b'PAR1'


class RowFault(ValueError):
  """A row that cannot be used; the message names file and place."""


class RowFile(Protocol):
  """Rows by index; what stands at an index never changes."""

  def __len__(self) -> int:
    """Rows, faulty ones among them."""

  def place(self, index: int) -> str:
    """File and line (of a Parquet file: row) of an index, for messages."""

  def row(self, index: int) -> dict[str, Any]:
    """The row of an index.

    Raises:
      RowFault: what stands there is no row.
    """


def open_file(path: str | pathlib.Path, setting: str) -> RowFile:
  """Opens a file of either kind, told apart by its name or first bytes.

  Args:
    path: of the file.
    setting: name of the path, for messages.

  Raises:
    ValueError: no such file, no rows, or a damaged Parquet file.
  """
  if not str(path):
    raise ValueError(f"{setting} = '': name a JSONL or Parquet file.")
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{setting} = {str(path)!r}: there is no such file.')
  with path.open('rb') as file:
    is_parquet = path.suffix == '.parquet' or file.read(4) == _PARQUET
  made = ParquetFile(path) if is_parquet else JsonlFile(path)
  if not len(made):
    raise ValueError(f'{setting} = {str(path)!r}: it has no rows.')
  return made


class JsonlFile:
  """One JSON object a line; blank lines do not count.

  Only the places of the lines are kept in memory.
  """

  def __init__(self, path: pathlib.Path):
    """Finds the lines."""
    self._path = path
    self._places: list[tuple[int, int]] = []
    offset = 0
    with path.open('rb') as file:
      for line, data in enumerate(file, start=1):
        if data.strip():
          self._places.append((line, offset))
        offset += len(data)

  def __len__(self) -> int:
    return len(self._places)

  def place(self, index: int) -> str:
    """File and line."""
    return f'{self._path}:{self._places[index][0]}'

  def row(self, index: int) -> dict[str, Any]:
    """The object on a line.

    Raises:
      RowFault: it is not a JSON object.
    """
    with self._path.open('rb') as file:
      file.seek(self._places[index][1])
      data = file.readline()
    try:
      row = parse_json(data)
    except ValueError as error:
      raise RowFault(f'{self.place(index)}: not JSON: {error}.') from error
    if not isinstance(row, dict):
      raise RowFault(f'{self.place(index)}: not a JSON object.')
    return row


def parse_json(text: str | bytes) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: it is none, too deep to be read, or has a name twice.
  """
  try:
    return json.loads(
        text,
        parse_constant=_refuse_constant,
        object_pairs_hook=_refuse_twice,
    )
  except RecursionError as error:
    raise ValueError(str(error)) from error


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is no JSON value')


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """An object; of a name that stands twice, one value would be lost."""
  made = dict(pairs)
  if len(made) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f'the name {twice!a} stands twice in one object')
  return made


class ParquetFile:
  """A Parquet file, held as columns."""

  def __init__(self, path: pathlib.Path):
    """Reads it.

    Raises:
      ValueError: pyarrow is not installed, or the file is damaged.
    """
    try:
      import pyarrow
      from pyarrow import parquet
    except ImportError as error:
      raise ValueError(
          f'{path}: a Parquet file is read by pyarrow, which is not installed;'
          " install the extra `data` (pip install 'rl-tpu[data]'), or convert"
          ' the file to JSONL.'
      ) from error
    self._path = path
    try:
      self._table = parquet.read_table(path)
    except pyarrow.ArrowException as error:
      raise ValueError(f'{path}: it does not read as Parquet: {error}') from (
          error
      )

  def __len__(self) -> int:
    return self._table.num_rows

  def place(self, index: int) -> str:
    """File and row, from 1."""
    return f'{self._path}:row {index + 1}'

  def row(self, index: int) -> dict[str, Any]:
    """The row as Python values."""
    return self._table.slice(index, 1).to_pylist()[0]
