"""Tasks from a user's files, one row per task."""

from collections.abc import Iterator, Mapping, Sequence

from rl_tpu.records import records
from rl_tpu.tasks import row_fields
from rl_tpu.tasks import row_files
from rl_tpu.tasks import splits


class RowTasks(Sequence):
  """The rows of a JSONL or Parquet file per split.

  Every row is checked when the source is built; a faulty one is named by file
  and line. Without an id the row's content stands for it. The payload holds
  `messages`, `answer` and `metadata`; a row's tools are the task's.
  """

  def __init__(
      self,
      split: str = 'train',
      *,
      train_file: str = '',
      eval_file: str = '',
      layout: str = 'plain',
      keys: Mapping[str, str] | None = None,
      source: str = 'rows',
  ):
    """Reads and checks a split's file.

    Args:
      split: train or eval.
      train_file: rows of train.
      eval_file: rows of eval.
      layout: plain, slime or verl: what the file calls its fields.
      keys: names that the file uses, by our field: {'prompt': 'question'}.
      source: name of the data in records and reports, where a row has none.

    Raises:
      ValueError: another split, no file, an unknown field, or a faulty row.
    """
    splits.check(split)
    self._fields = row_fields.Fields(
        layout, keys or {}, source, prefix='tasks.settings.'
    )
    self._file = row_files.open_file(
        train_file if split == 'train' else eval_file,
        f'tasks.settings.{split}_file',
    )
    self._by_source: dict[str, list[int]] = {}
    for index, found in enumerate(scan(self._file, self._fields)):
      if isinstance(found, row_files.RowFault):
        raise found
      self._by_source.setdefault(found.source, []).append(index)

  def __len__(self) -> int:
    return len(self._file)

  def __getitem__(self, index: int) -> records.Task:
    """The task of a row.

    Raises:
      IndexError: outside the file.
    """
    index = range(len(self._file))[index]
    return self._fields.task(self._file.row(index), self._file.place(index))

  def indices_by_source(self) -> dict[str, list[int]]:
    """Places of the rows of every source (D4)."""
    return self._by_source


def scan(
    file: row_files.RowFile, fields: row_fields.Fields
) -> Iterator[records.Task | row_files.RowFault]:
  """The task of every row, or what is wrong with it.

  A row with the id of an earlier one is a fault: results are kept by id.
  """
  places: dict[str, str] = {}
  for index in range(len(file)):
    place = file.place(index)
    try:
      task = fields.task(file.row(index), place)
    except row_files.RowFault as fault:
      yield fault
      continue
    first = places.setdefault(task.task_id, place)
    if first is not place:
      yield row_files.RowFault(
          f'{place}: id {task.task_id!r} is that of {first} too.'
      )
      continue
    yield task
