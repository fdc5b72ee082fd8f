"""Rows of Parquet files, as verl's users have them (extra `data`)."""

import contextlib
import io
import json
import pathlib

import pyarrow
from absl.testing import absltest
from pyarrow import parquet

from rl_tpu.cli import main
from rl_tpu.tasks import cursor
from rl_tpu.tasks import rows


def verl(index: int, **changes) -> dict:
  return {
      'data_source': 'sums',
      'prompt': [{'role': 'user', 'content': f'What is 1 + {index}?'}],
      'ability': 'math',
      'reward_model': {'style': 'rule', 'ground_truth': str(1 + index)},
      'extra_info': {'index': index, 'split': 'train'},
  } | changes


class ParquetTest(absltest.TestCase):

  def file(self, table_rows, name='rows.parquet') -> str:
    path = pathlib.Path(self.create_tempdir().full_path) / name
    # Small groups, so that the rows are spread over several.
    parquet.write_table(
        pyarrow.Table.from_pylist(table_rows), path, row_group_size=2
    )
    return str(path)

  def test_rows_are_those_of_the_same_jsonl_file(self):
    given = [verl(i) for i in range(5)]
    path = pathlib.Path(self.create_tempdir().full_path) / 'rows.jsonl'
    path.write_text('\n'.join(map(json.dumps, given)), encoding='utf-8')
    expected = rows.RowTasks(train_file=str(path), layout='verl')
    for name in ('rows.parquet', 'rows'):
      made = rows.RowTasks(train_file=self.file(given, name), layout='verl')
      self.assertEqual(list(made), list(expected))
      self.assertEqual(made.indices_by_source(), {'sums': [0, 1, 2, 3, 4]})

  def test_a_faulty_row_is_named_by_file_and_row(self):
    path = self.file([verl(0), verl(1), verl(2, reward_model=None)])
    with self.assertRaisesRegex(
        ValueError, "rows.parquet:row 3: field 'reward_model.ground_truth'"
    ):
      rows.RowTasks(train_file=path, layout='verl')
    path = self.file([verl(0), verl(1), verl(0)])
    with self.assertRaisesRegex(ValueError, 'row 3: id .* that of .*row 1 too'):
      rows.RowTasks(train_file=path, layout='verl')

  def test_check_data_reads_it(self):
    good = self.file([verl(i) for i in range(3)])
    bad = self.file([verl(0), verl(1, prompt=[])])
    for path, code, text in (
        (good, 0, '3 rows, 0 of them faulty'), (bad, 1, "'prompt' is empty"),
    ):
      out = io.StringIO()
      with contextlib.redirect_stdout(out):
        found = main.main(['check-data', f'--input={path}', '--layout=verl'])
      self.assertEqual(found, code)
      self.assertIn(text, out.getvalue())

  def test_a_damaged_file_is_named(self):
    path = pathlib.Path(self.file([verl(0)]))
    path.write_bytes(path.read_bytes()[:-20])
    with self.assertRaisesRegex(ValueError, 'rows.parquet: .*as Parquet'):
      rows.RowTasks(train_file=str(path), layout='verl')

  def test_an_empty_file_is_named(self):
    path = pathlib.Path(self.file([verl(0)]))
    parquet.write_table(parquet.read_table(path).slice(0, 0), path)
    with self.assertRaisesRegex(ValueError, 'no rows'):
      rows.RowTasks(train_file=str(path), layout='verl')

  def test_K26_a_saved_place_goes_on_with_the_next_row(self):
    path = self.file([verl(i) for i in range(5)])
    make = lambda: cursor.TaskCursor(
        rows.RowTasks(train_file=path, layout='verl'), seed=1
    )
    whole = [task.task_id for task in make().take(8)]
    first, second = make(), make()
    taken = [task.task_id for task in first.take(3)]
    second.restore(first.state())
    taken += [task.task_id for task in second.take(5)]
    self.assertEqual(taken, whole)


if __name__ == '__main__':
  absltest.main()
