"""JSONL rows as tasks; faulty rows are named."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.tasks import jsonl

GOOD = {'id': 'a', 'prompt': 'What is 1 + 1?', 'answer': '2'}


class JsonlTasksTest(parameterized.TestCase):

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
        json.dumps(GOOD | {'level': 3}),
        '',
        json.dumps(
            {'id': 7, 'messages': chat, 'answer': 4.5, 'family': 'geo'},
            ensure_ascii=False,
        ),
    )
    tasks = jsonl.JsonlTasks('train', train_file=path, source='mine')
    self.assertLen(tasks, 2)
    first, second = tasks[0], tasks[1]
    self.assertEqual(first.task_id, 'a')
    self.assertEqual(first.source, 'mine')
    self.assertEqual(
        first.payload,
        {
            'messages': [{'role': 'user', 'content': 'What is 1 + 1?'}],
            'answer': '2',
            'metadata': {'level': 3},
        },
    )
    self.assertEqual(second.task_id, '7')
    self.assertEqual(second.family, 'geo')
    self.assertEqual(second.payload['messages'], chat)
    self.assertEqual(second.payload['answer'], '4.5')
    self.assertEqual(tasks[-1], second)

  def test_keys_map_a_files_own_names(self):
    path = self.file('{"question": "q", "solution": "s"}')
    tasks = jsonl.JsonlTasks(
        'eval',
        eval_file=path,
        keys={'prompt': 'question', 'answer': 'solution'},
    )
    self.assertEqual(tasks[0].payload['answer'], 's')
    # No id: the content stands for the row, wherever it is.
    again = jsonl.JsonlTasks(
        'train',
        train_file=self.file('{"prompt": "x", "answer": "y"}',
                             '{"prompt": "q", "answer": "s"}'),
    )
    self.assertEqual(again[1].task_id, tasks[0].task_id)

  @parameterized.parameters(
      ('{"id": "b", "prompt": "q"}', "'answer' is missing"),
      ('{"id": "b", "answer": "2"}', "one of the fields 'prompt'"),
      ('{"prompt": "q", "messages": [], "answer": "2"}', 'one of the fields'),
      ('{"prompt": "", "answer": "2"}', "'prompt' is no text"),
      ('{"prompt": 3, "answer": "2"}', "'prompt' is no text"),
      ('{"prompt": "q", "answer": null}', "'answer' is missing"),
      ('{"prompt": "q", "answer": true}', "'answer' is missing"),
      ('{"messages": [], "answer": "2"}', "'messages' is no list"),
      ('{"messages": [{"role": "me", "content": ""}], "answer": ""}', 'roles'),
      ('{"id": "", "prompt": "q", "answer": "2"}', "'id' is no text"),
      ('{"id": "a", "prompt": "q", "answer": "2"}', "'a' is that of line 1"),
      ('{"id": "b", "prompt"', 'not JSON'),
      ('["q"]', 'not a JSON object'),
  )
  def test_a_faulty_row_is_named_by_file_and_line(self, row, message):
    path = self.file(json.dumps(GOOD), row)
    with self.assertRaisesRegex(ValueError, f'rows.jsonl:2: .*{message}'):
      jsonl.JsonlTasks('train', train_file=path)

  def test_files_and_fields_are_checked(self):
    with self.assertRaisesRegex(ValueError, "tasks.settings.eval_file = '"):
      jsonl.JsonlTasks('eval', train_file=self.file(json.dumps(GOOD)))
    with self.assertRaisesRegex(ValueError, 'no rows'):
      jsonl.JsonlTasks('train', train_file=self.file(''))
    with self.assertRaisesRegex(ValueError, 'tasks.settings.keys.promt'):
      jsonl.JsonlTasks(
          'train', train_file=self.file(json.dumps(GOOD)), keys={'promt': 'q'}
      )


if __name__ == '__main__':
  absltest.main()
