"""What ends a turn is told alike by every file and by the run (K53)."""

import json
import pathlib

from absl import logging
from absl.testing import absltest
from absl.testing import parameterized
import tokenizers
from tokenizers import models

from rl_tpu.assembly import ends
from rl_tpu.config import schema
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib

_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{{ end }}"
    '{% endfor %}'
)
_CLOSING = _TEMPLATE.replace('{{ end }}', '<|one|>')


class EndsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    made = tokenizers.Tokenizer(models.BPE())
    made.add_special_tokens(['<|zero|>', '<|one|>', '<|two|>'])
    made.add_tokens([' ', *'abcdefghijklmnopqrstuvwxyz', '_'])
    made.save(str(self.folder / 'tokenizer.json'))

  def write(self, name: str, **content) -> None:
    (self.folder / f'{name}.json').write_text(json.dumps(content))

  def read(self, name: str):
    return json.loads((self.folder / f'{name}.json').read_text())

  def parts(self, stop=(), template=_CLOSING):
    config = schema.ExperimentConfig(
        'test',
        model=schema.ModelConfig(path=str(self.folder)),
        sampling=schema.SamplingConfig(stop=stop),
    )
    tokenizer = tokenizer_lib.Tokenizer.from_folder(self.folder)
    return config, tokenizer, chat.ChatTemplate(template)

  def warnings(self, **how) -> list[str]:
    with self.assertLogs('absl', 'WARNING') as found:
      ends.check(*self.parts(**how))
      logging.warning('so that there is one in any case')
    return [record.getMessage() for record in found.records[:-1]]

  def test_K53b_a_closing_token_that_ends_no_turn_is_one_warning(self):
    self.write('generation_config', eos_token_id=0)
    self.write('tokenizer_config', eos_token='<|one|>')
    (line,) = self.warnings()
    self.assertIn("a turn ends with '<|zero|>' (0)", line)
    self.assertIn("no turn ends with '<|one|>' (1)", line)
    self.assertIn('chat template', line)
    self.assertNotIn('\n', line)

  @parameterized.parameters(
      ({'generation_config': 0, 'config': [0, 2]}, (), "'<|two|>' (2)"),
      ({'generation_config': [0, 2], 'config': 0}, (), None),
      ({'generation_config': [2, 0]}, ('<|zero|>',), "'<|two|>' (2)"),
      ({'generation_config': 0}, ('<|zero|>',), None),
  )
  def test_K53_every_file_that_tells_it_is_compared(self, files, stop, line):
    for name, told in files.items():
      self.write(name, eos_token_id=told)
    found = self.warnings(stop=stop, template=_TEMPLATE)
    self.assertLen(found, int(line is not None))
    self.assertIn(line or '', ''.join(found))

  def test_K53_what_agrees_is_not_worth_a_line(self):
    self.write('generation_config', eos_token_id=[1, 0])
    self.write('config', eos_token_id=1)
    self.write('tokenizer_config', eos_token='<|one|>')
    self.assertEmpty(self.warnings())

  def test_K53_a_stop_token_that_the_vocabulary_lacks(self):
    with self.assertRaisesRegex(ValueError, "sampling.stop = '<|end|>': "):
      ends.check(*self.parts(stop=('<|end|>',)))

  def test_K53a_the_run_s_ends_are_told_by_every_file(self):
    self.write('generation_config', eos_token_id=0, temperature=0.5)
    self.write('config', eos_token_id=[0, 2], hidden_size=4)
    self.write('tokenizer_config', eos_token='<|zero|>', pad_token='<|two|>')
    self.write('special_tokens_map', eos_token={'content': '<|zero|>'})
    config, tokenizer, template = self.parts(stop=('<|one|>',))
    found = ends.ids(config, tokenizer)
    ends.write(self.folder, found, tokenizer, template)
    self.assertEqual(
        self.read('generation_config'), {'eos_token_id': 1, 'temperature': 0.5}
    )
    self.assertEqual(
        self.read('config'), {'eos_token_id': [1], 'hidden_size': 4}
    )
    self.assertEqual(
        self.read('tokenizer_config'),
        {'eos_token': '<|one|>', 'pad_token': '<|two|>'},
    )
    self.assertEqual(self.read('special_tokens_map'), {'eos_token': '<|one|>'})
    # The next run stops on it, without a setting and without a warning.
    config, tokenizer, _ = self.parts()
    self.assertEqual(ends.ids(config, tokenizer), (1,))
    self.assertEmpty(self.warnings())

  def test_K53a_an_eos_token_that_the_template_writes_is_kept(self):
    self.write('tokenizer_config', eos_token='<|zero|>')
    template = _TEMPLATE.replace('end }}', 'eos_token }}')
    config, tokenizer, made = self.parts(stop=('<|one|>',), template=template)
    ends.write(self.folder, ends.ids(config, tokenizer), tokenizer, made)
    self.assertEqual(self.read('tokenizer_config')['eos_token'], '<|zero|>')


if __name__ == '__main__':
  absltest.main()
