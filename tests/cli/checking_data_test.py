"""The verb check-data: reports, refusals and exit codes."""

import contextlib
import io
import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.cli import main
from rl_tpu.environments import arithmetic_tokenizer


def call(*words: str) -> tuple[int, str, str]:
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = main.main(['check-data', *words])
  return code, out.getvalue(), err.getvalue()


class CheckDataTest(parameterized.TestCase):

  def file(self, *rows) -> str:
    path = pathlib.Path(self.create_tempdir().full_path) / 'rows.jsonl'
    lines = [r if isinstance(r, str) else json.dumps(r) for r in rows]
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return str(path)

  def cells(self, out: str, name: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if name in line]
    return [cell.strip() for cell in line.split('\u2502')[2:-1]]

  def test_lengths_and_two_prompts(self):
    # Prompts of 1 to 20 characters, nine answers of one and eleven of two.
    path = self.file(*[
        {'question': 'q' * n, 'sum': str(n)} for n in range(1, 21)
    ])
    code, out, err = call(
        f'--input={path}', '--keys=prompt=question,answer=sum'
    )
    self.assertEqual((code, err), (0, ''))
    self.assertIn('20 rows, 0 of them faulty', out)
    # Ranks 1, 10, 19, 20 and 20 of 20; the mean is 210 / 20.
    self.assertEqual(
        self.cells(out, 'prompt characters'),
        ['1', '10', '19', '20', '20', '10.5'],
    )
    self.assertEqual(
        self.cells(out, 'answer characters'), ['1', '2', '2', '2', '2', '1.6']
    )
    self.assertNotIn('prompt tokens', out)
    self.assertIn('user: q\n', out)
    self.assertIn('user: qq\n', out)
    self.assertNotIn('user: qqq\n', out)

  def test_a_model_renders_and_counts_tokens(self):
    folder = self.create_tempdir().full_path
    arithmetic_tokenizer.build(folder)
    long = 'x ' * 90
    path = self.file(
        {'prompt': '1 + 1', 'answer': '2'},
        {'prompt': 'Capital', 'answer': '2'},
        {'prompt': long, 'answer': '2'},
    )
    code, out, _ = call(f'--input={path}', f'--model={folder}')
    self.assertEqual(code, 1)
    # The template writes a line's end and '>'; a letter is a token. Capital
    # letters are not in the vocabulary.
    self.assertEqual(
        self.cells(out, 'prompt tokens'),
        ['7', '7', '182', '182', '182', '94.5'],
    )
    self.assertIn('1 + 1\n>', out)
    # As it is, however wide the screen.
    self.assertIn(long + '\n>', out)
    self.assertIn("rows.jsonl:2: the vocabulary has no token for part", out)

  def test_the_tools_of_a_row_are_shown_and_counted(self):
    folder = self.create_tempdir().full_path
    arithmetic_tokenizer.build(folder)
    template = pathlib.Path(folder) / 'chat_template.jinja'
    template.write_text(
        '{% for t in tools or [] %}{{ t.name }} {% endfor %}'
        '{{ messages[0].content }}'
    )
    tools = [{'name': name, 'parameters': {}} for name in ('add', 'calc')]
    row = {'prompt': '1 + 1', 'answer': '2'}
    path = self.file(
        row | {'tools': tools}, row, row | {'id': 'c', 'tools': ['add']}
    )
    code, out, _ = call(f'--input={path}', f'--model={folder}')
    self.assertEqual(code, 1)
    # A letter is a token: 'add calc 1 + 1' has 14, '1 + 1' has 5.
    self.assertEqual(
        self.cells(out, 'prompt tokens'), ['5', '5', '14', '14', '14', '9.5']
    )
    self.assertIn('add calc 1 + 1\n', out)
    self.assertIn("rows.jsonl:3: field 'tools' has a tool 1 that is no", out)
    # The same prompt with other tools is no repetition.
    self.assertNotIn('repeat', out)
    # Without a model the tools are shown as they stand in the row.
    out = call(f'--input={path}')[1]
    self.assertIn('tool: {"name": "calc", "parameters": {}}\nuser: 1 + 1', out)
    template.write_text('{{ messages[0].content }}')
    out = call(f'--input={path}', f'--model={folder}')[1]
    self.assertRegex(out, 'rows.jsonl:1: the chat template does not read `too')

  def test_the_prompts_are_those_of_a_run_with_its_template(self):
    folder = self.create_tempdir().full_path
    arithmetic_tokenizer.build(folder)
    template = pathlib.Path(folder) / 'own.jinja'
    template.write_text(
        "{{ messages[0].content }}{{ 'no' if think is false }}{{ n + 1 }}"
    )
    path = self.file({'prompt': '1 + 1 ', 'answer': '2'})
    code, out, _ = call(
        f'--input={path}', f'--model={folder}', f'--chat_template={template}',
        '--template_variables=think=false,n=4',
    )
    self.assertEqual(code, 0)
    self.assertIn('1 + 1 no5\n', out)

  def test_faulty_rows_are_named_by_line_and_fail_the_check(self):
    good = {'id': 'a', 'prompt': 'p', 'answer': '1'}
    path = self.file(
        good, '{"id"', '', {'prompt': 'q'}, {'prompt': ' ', 'answer': '1'},
        {'prompt': 5, 'answer': '1'}, good, good | {'id': 'b'},
    )
    code, out, err = call(f'--input={path}')
    self.assertEqual((code, err), (1, ''))
    self.assertIn('7 rows, 5 of them faulty; 1 repeat the prompt', out)
    for line, what in (
        (2, 'not JSON'), (4, "'answer' is missing; it has prompt"),
        (5, "'prompt' is empty"), (6, "'prompt' is no text"),
        (7, "id 'a' is that of"),
    ):
      self.assertRegex(out, f'rows.jsonl:{line}: .*{what}')
    self.assertNotIn('rows.jsonl:8', out)
    code, out, _ = call(f'--input={path}', '--limit=2')
    self.assertEqual(code, 1)
    self.assertIn('and 3 more faulty rows', out)
    self.assertNotIn('rows.jsonl:5', out)

  def test_a_file_without_a_usable_row(self):
    code, out, _ = call(f'--input={self.file({"text": "[bold]"})}')
    self.assertEqual(code, 1)
    self.assertIn('1 rows, 1 of them faulty', out)
    self.assertIn('it has text', out)

  def test_layouts(self):
    path = self.file(
        {'prompt': 'q', 'label': '1', 'metadata': {}},
        {'prompt': 'r', 'label': 2},
    )
    self.assertEqual(call(f'--input={path}')[0], 1)
    self.assertEqual(call(f'--input={path}', '--layout=slime')[0], 0)
    rows = [
        {'prompt': name, 'data_source': name, 'reward_model': {'truth': 1}}
        for name in 'xyx'
    ]
    rows[2]['prompt'] = 'z'
    code, out, _ = call(
        f'--input={self.file(*rows)}', '--layout=verl',
        '--keys=answer=reward_model.truth',
    )
    self.assertEqual(code, 0)
    self.assertIn('x 2, y 1', out)

  @parameterized.parameters(
      ((), '--input is missing'),
      (('--input=/nowhere/x.jsonl',), '--input = .*no such file'),
      (('--input={empty}',), 'no rows'),
      (('--input={good}', '--keys=question'), "'question' is no pair"),
      (('--input={good}', '--keys=promt=q'), '--keys.promt'),
      (('--input={good}', '--layout=trl'), 'plain, slime, verl|plain|slime'),
      (('--input={good}', '--chat_template=x'), '--chat_template=x: .*--model'),
      (('--input={good}', '--template_variables=x=1'), '_variables=x=1: .*--m'),
      (
          ('--input={good}', '--model={model}', '--template_variables=x=1'),
          'variables.x = 1: the chat template does not read',
      ),
      (
          ('--input={good}', '--model={model}', '--template_variables=x'),
          "'x' is no pair name=value, such as enable_thinking=false",
      ),
      (('--input={good}', '--model=/nowhere'), '/nowhere.*tokenizer.json'),
      (('--input={good}', '--inptu=x'), 'did you mean --input'),
  )
  def test_what_cannot_be_read_is_one_line_and_exit_code_2(
      self, words, message
  ):
    model = self.create_tempdir().full_path
    arithmetic_tokenizer.build(model)
    files = {
        'model': model,
        'good': self.file({'prompt': 'q', 'answer': '1'}),
        'empty': self.file(''),
    }
    code, out, err = call(*(word.format(**files) for word in words))
    self.assertEqual((code, out), (2, ''))
    self.assertLen(err.splitlines(), 1)
    self.assertRegex(err, message)


if __name__ == '__main__':
  absltest.main()
