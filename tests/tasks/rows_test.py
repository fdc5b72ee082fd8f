"""Rows of files as tasks; faulty rows are named (K26)."""

import json
import pathlib
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.tasks import cursor
from rl_tpu.tasks import rows

GOOD = {'id': 'a', 'prompt': 'What is 1 + 1?', 'answer': '2'}
VERL = {
    'data_source': 'sums',
    'prompt': [{'role': 'user', 'content': 'What is 1 + 1?', 'name': 'x'}],
    'ability': 'math',
    'reward_model': {'style': 'rule', 'ground_truth': '2'},
    'extra_info': {'index': 3, 'split': 'train'},
}


# A tool in both forms.
ADD = {'name': 'add', 'parameters': {'type': 'object'}, 'strict': True}
WRAPPED = {'type': 'function', 'function': {'name': 'sub', 'parameters': {}}}


def with_tools(*tools) -> str:
  return json.dumps({'prompt': 'q', 'answer': '2', 'tools': list(tools)})


class RowTasksTest(parameterized.TestCase):

  def file(self, *lines: str) -> str:
    path = pathlib.Path(self.create_tempdir().full_path) / 'rows.jsonl'
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return str(path)

  def test_rows_become_tasks(self):
    chat = [
        {'role': 'system', 'content': 'Be short.'},
        {'role': 'user', 'content': 'Wie heißt die Stadt?'},
    ]
    path = self.file(
        json.dumps(GOOD | {'level': 3, 'metadata': {'year': 4}}),
        '',
        json.dumps(
            {'id': 7, 'messages': chat, 'answer': 4.5, 'family': 'geo'},
            ensure_ascii=False,
        ),
    )
    tasks = rows.RowTasks('train', train_file=path, source='mine')
    self.assertLen(tasks, 2)
    first, second = tasks[0], tasks[1]
    self.assertEqual(first.task_id, 'a')
    self.assertEqual((first.source, first.family), ('mine', 'mine'))
    self.assertEqual(
        first.payload,
        {
            'messages': [{'role': 'user', 'content': 'What is 1 + 1?'}],
            'answer': '2',
            'metadata': {'level': 3, 'year': 4},
        },
    )
    self.assertEqual(second.task_id, '7')
    self.assertEqual(second.family, 'geo')
    self.assertEqual(second.payload['messages'], chat)
    self.assertEqual(second.payload['answer'], '4.5')
    self.assertEqual(tasks[-1], second)
    with self.assertRaises(IndexError):
      tasks[2]  # pylint: disable=pointless-statement

  def test_keys_map_a_files_own_names(self):
    path = self.file(
        '{"question": "q", "sum": {"total": 3, "n": 1}, "level": 2}',
        # The whole name goes before its parts.
        '{"question": "r", "sum": 5, "sum.total": 4}',
    )
    tasks = rows.RowTasks(
        'eval',
        eval_file=path,
        keys={'prompt': 'question', 'answer': 'sum.total'},
    )
    self.assertEqual(
        # What is not taken as a field stays, beside it too (K49).
        [(t.payload['answer'], t.payload['metadata']) for t in tasks],
        [('3', {'level': 2, 'sum': {'n': 1}}), ('4', {'sum': 5})],
    )
    # No id: the content stands for the row, wherever it is.
    again = rows.RowTasks(
        'train',
        train_file=self.file('{"prompt": "x", "answer": "y"}',
                             '{"prompt": "q", "answer": "3"}'),
    )
    self.assertEqual(again[1].task_id, tasks[0].task_id)

  def test_the_layout_of_slime(self):
    path = self.file(
        '{"prompt": "q", "label": 7, "metadata": {"rm_type": "math"}}',
        '{"prompt": [{"role": "user", "content": "r"}], "label": "8"}',
    )
    tasks = rows.RowTasks(train_file=path, layout='slime')
    self.assertEqual(
        tasks[0].payload,
        {
            'messages': [{'role': 'user', 'content': 'q'}],
            'answer': '7',
            'metadata': {'rm_type': 'math'},
        },
    )
    self.assertEqual(tasks[1].payload['messages'][0]['content'], 'r')

  def test_D4_the_layout_of_verl_names_its_sources(self):
    path = self.file(
        json.dumps(VERL),
        json.dumps(VERL | {'data_source': 'dates'}).replace('1 + 1', '2 + 2'),
        json.dumps(VERL | {'ability': None}).replace('1 + 1', '0 + 2'),
    )
    tasks = rows.RowTasks(train_file=path, layout='verl')
    self.assertEqual((tasks[0].source, tasks[0].family), ('sums', 'math'))
    self.assertEqual(
        tasks[0].payload,
        {
            'messages': [
                {'role': 'user', 'content': 'What is 1 + 1?', 'name': 'x'}
            ],
            'answer': '2',
            # Nothing that stands in the row is left out (K49).
            'metadata': {
                'index': 3, 'split': 'train', 'reward_model': {'style': 'rule'}
            },
        },
    )
    self.assertEqual(tasks[2].family, 'sums')
    self.assertEqual(tasks.indices_by_source(), {'sums': [0, 2], 'dates': [1]})

  @parameterized.parameters('plain', 'slime', 'verl')
  def test_the_tools_of_a_row_are_those_of_its_task(self, layout):
    tools = [ADD, WRAPPED]
    names = {'answer': 'answer', 'id': 'id'}
    row = {'prompt': 'q', 'answer': '2'}
    path = self.file(
        json.dumps(row | {'tools': tools}),
        # A column of Parquet holds them as text.
        json.dumps(row | {'id': 'b', 'tools': json.dumps(tools)}),
        json.dumps(row | {'tools': None}),
        json.dumps(row | {'prompt': 'r', 'tools': []}),
    )
    tasks = rows.RowTasks(train_file=path, layout=layout, keys=names)
    found = [task.tools for task in tasks]
    self.assertEqual(found, [(ADD, WRAPPED), (ADD, WRAPPED), (), ()])
    self.assertEqual(tasks[0].payload['metadata'], {})
    # Without an id, the same prompt with tools is another task.
    self.assertNotEqual(tasks[0].task_id, tasks[2].task_id)
    self.assertEqual(tasks[0].payload, tasks[2].payload)

  def test_a_files_own_name_for_tools(self):
    path = self.file(
        json.dumps({'prompt': 'q', 'answer': '2', 'functions': [ADD]})
    )
    tasks = rows.RowTasks(train_file=path, keys={'tools': 'functions'})
    self.assertEqual(tasks[0].tools, (ADD,))

  @parameterized.parameters(
      ('{"prompt": "q", "answer": "2", "tools": {"name": "f"}}', 'is no list'),
      ('{"prompt": "q", "answer": "2", "tools": "add"}', 'is text that is n'),
      ('{"prompt": "q", "answer": "2", "tools": "[NaN]"}', 'NaN is no JSON'),
      (with_tools(ADD, 'add'), 'has a tool 2 that is no object'),
      (with_tools({'parameters': {}}), 'a tool 1 that has no name;'),
      (with_tools(ADD | {'name': 7}), 'a tool 1 that has no name;'),
      (with_tools({'name': 'f'}), r'has no object "parameters" \(f\);'),
      (with_tools(ADD | {'parameters': []}), 'no object "parameters"'),
      (with_tools(WRAPPED | {'type': 'code'}), "has type 'code'; write"),
      (with_tools({'function': ADD}), 'has type None; write "function"'),
      (with_tools({'type': 'function', 'name': 'f'}), 'has no function'),
      (
          with_tools({'type': 'function', 'function': {'name': 'f'}}),
          'no object "parameters" in its function',
      ),
      (
          with_tools(ADD, {'type': 'function', 'function': ADD}),
          "two tools of the name 'add'",
      ),
  )
  def test_tools_of_another_form_are_named_by_file_and_line(self, row, message):
    path = self.file(json.dumps(GOOD), row)
    with self.assertRaisesRegex(
        ValueError, f"rows.jsonl:2: field 'tools' .*{message}"
    ):
      rows.RowTasks('train', train_file=path)

  @parameterized.parameters(
      ('{"id": "b", "prompt": "q"}', "'answer' is missing; it has id, prompt"),
      ('{"id": "b", "answer": "2"}', "one of the fields 'prompt'"),
      ('{}', "'messages'; it has none"),
      (
          '{"prompt": "q", "messages": [{"role": "user", "content": "q"}],'
          ' "answer": "2"}',
          'one of the fields',
      ),
      ('{"prompt": "", "answer": "2"}', "'prompt' is empty"),
      ('{"prompt": " \\n", "answer": "2"}', "'prompt' is empty"),
      ('{"prompt": 3, "answer": "2"}', "'prompt' is no text"),
      ('{"messages": "q", "answer": "2"}', "'messages' is no text and no list"),
      ('{"prompt": "q", "answer": null}', "'answer' is missing"),
      ('{"prompt": "q", "answer": true}', "'answer' is no text or number"),
      ('{"prompt": "q", "answer": ["2"]}', "'answer' is no text or number"),
      ('{"messages": [], "answer": "2"}', "'messages' is empty"),
      ('{"messages": [{"role": "me", "content": ""}], "answer": ""}', 'roles'),
      (
          '{"messages": [{"role": "assistant", "content": "x"}],'
          ' "answer": "2"}',
          'nothing is asked',
      ),
      ('{"id": "", "prompt": "q", "answer": "2"}', "'id' is no text"),
      ('{"id": true, "prompt": "q", "answer": "2"}', "'id' is no text"),
      ('{"family": 3, "prompt": "q", "answer": "2"}', "'family' is no text"),
      ('{"metadata": 3, "prompt": "q", "answer": "2"}', "'metadata' is no obj"),
      ('{"id": "a", "prompt": "q", "answer": "2"}', "'a' is that of .*jsonl:1"),
      ('{"id": "b", "prompt"', 'not JSON'),
      ('{"id": "b", "prompt": "q", "answer": NaN}', 'NaN is no JSON value'),
      ('["q"]', 'not a JSON object'),
  )
  def test_a_faulty_row_is_named_by_file_and_line(self, row, message):
    path = self.file(json.dumps(GOOD), '', row)
    with self.assertRaisesRegex(ValueError, f'rows.jsonl:3: .*{message}'):
      rows.RowTasks('train', train_file=path)

  def test_files_and_fields_are_checked(self):
    good = self.file(json.dumps(GOOD))
    with self.assertRaisesRegex(ValueError, "tasks.settings.eval_file = '"):
      rows.RowTasks('eval', train_file=good)
    with self.assertRaisesRegex(ValueError, 'no rows'):
      rows.RowTasks('train', train_file=self.file(''))
    with self.assertRaisesRegex(ValueError, "split = 'test'"):
      rows.RowTasks('test', train_file=good)
    for settings, message in (
        ({'keys': {'promt': 'q'}}, 'tasks.settings.keys.promt'),
        ({'keys': {'prompt': ''}}, 'tasks.settings.keys.prompt'),
        ({'layout': 'trl'}, "layout = 'trl'.*plain, slime, verl"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        rows.RowTasks('train', train_file=good, **settings)

  def test_a_parquet_file_without_pyarrow_is_refused_with_the_cure(self):
    for name, content in (('rows.parquet', b'x'), ('rows', b'PAR1x')):
      path = pathlib.Path(self.create_tempdir().full_path) / name
      path.write_bytes(content)
      with mock.patch.dict(sys.modules, {'pyarrow': None}):
        with self.assertRaisesRegex(ValueError, r'rl-tpu\[data\]'):
          rows.RowTasks('train', train_file=str(path))

  def test_K26_a_saved_place_goes_on_with_the_next_row(self):
    path = self.file(*[
        json.dumps({'prompt': f'q{i}', 'answer': i}) for i in range(5)
    ])
    make = lambda: cursor.TaskCursor(rows.RowTasks(train_file=path), seed=3)
    whole = [task.task_id for task in make().take(12)]
    # Two whole epochs, each row once in each.
    self.assertLen(set(whole[:5]), 5)
    self.assertCountEqual(whole[:5], whole[5:10])
    first = make()
    taken = [task.task_id for task in first.take(7)]
    second = make()
    second.restore(json.loads(json.dumps(first.state())))
    taken += [task.task_id for task in second.take(5)]
    self.assertEqual(taken, whole)
    other = cursor.TaskCursor(
        rows.RowTasks(train_file=self.file(json.dumps(GOOD))), seed=3
    )
    with self.assertRaisesRegex(ValueError, 'other tasks'):
      other.restore(first.state())


if __name__ == '__main__':
  absltest.main()
