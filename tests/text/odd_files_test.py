"""JSON and tokenizer files as strangers write them: one line names them."""

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.text import json_files
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.text import tokenizer_files
from tests import tiny

_BPE = {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': ['a b']}
_SPLIT = {'type': 'Split', 'behavior': 'Isolated', 'invert': False}


def _tokenizer(**changes) -> dict:
  """A tokenizer.json that works, with changes."""
  model = {**_BPE, **changes.pop('model', {})}
  whole = {'version': '1.0', 'added_tokens': [], 'normalizer': None}
  whole |= {'pre_tokenizer': None, 'post_processor': None, 'decoder': None}
  return {**whole, 'model': model, **changes}


class JsonFilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / 'config.json'

  def refused(self, line: str) -> None:
    with self.assertRaisesRegex(ValueError, f'config.json.*{line}') as caught:
      json_files.read_object(self.path)
    self.assertLess(len(str(caught.exception)), 400)
    self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters(
      (b'[' * 10**5, '64 deep'),
      (b'{"a": ' + b'[' * 100 + b']' * 100 + b'}', '64 deep'),
      (b'{"a":' * 10**5 + b'1' + b'}' * 10**5, '64 deep'),
      (b'{"a": 1, "b": 2, "a": 3}', "key 'a' twice"),
      ('{"a": "\u00e4"}'.encode('latin-1'), 'utf-8'),
      (b'\xef\xbb\xbf{}', 'BOM'),
      (b'{"a": "\\ud800"}', 'half of a character'),
      (b'{"\\udfff": 1}', 'half of a character'),
      (b'{"a": ["\\ud800x"]}', 'half of a character'),
      (b'{"a": NaN}', 'NaN'),
      (b'{"a": -Infinity}', 'Infinity'),
      (b'{"a": 1e999}', '1e999'),
      (b'{"a": ' + b'9' * 10**5 + b'}', 'digits'),
      (b'[]', 'a JSON object'),
      (b'null', 'a JSON object'),
      (b'{"a": 1', 'does not parse'),
      (b'', 'does not parse'),
      (b'\x00' * 100, 'does not parse'),
  )
  def test_K54_a_content_that_is_none(self, data, line):
    self.path.write_bytes(data)
    self.refused(line)

  def test_K54_what_is_whole_is_read(self):
    self.path.write_bytes(b'{"a": "\\ud83d\\ude00", "b": [[1.5]]}')
    found = json_files.read_object(self.path)
    self.assertEqual(found, {'a': '\U0001f600', 'b': [[1.5]]})

  def test_K54_a_large_file_is_not_read(self):
    with self.path.open('wb') as file:
      file.truncate(10 * 2**30)  # Holes: it takes no room.
    self.refused('10737418240 bytes')

  def test_K54_things_that_are_no_files(self):
    os.mkfifo(self.path)
    self.refused('a pipe or a device')
    self.path.unlink()
    self.path.mkdir()
    self.refused('a directory')
    self.path.rmdir()
    self.path.symlink_to('/dev/zero')
    self.refused('a pipe or a device')
    self.path.unlink()
    self.path.symlink_to('config.json')
    self.refused('symbolic links')
    self.path.unlink()
    self.path.symlink_to('nowhere')
    self.refused('No such file')
    self.path.unlink()
    self.refused('missing')
    self.assertFalse(json_files.is_there(self.path))
    with self.assertRaisesRegex(ValueError, 'name too long'):
      json_files.is_there(self.path.parent / ('a' * 5000))
    with self.assertRaisesRegex(ValueError, 'no name of a file'):
      json_files.is_there(self.path.parent / 'a\0b')


class OddTokenizerTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def write(self, content, name='tokenizer.json') -> None:
    (self.folder / name).write_text(json.dumps(content))

  def test_what_is_changed_below_works(self):
    self.write(_tokenizer())
    made = tokenizer_lib.Tokenizer.from_folder(self.folder)
    self.assertEqual(made.encode('aab').tolist(), [0, 2])

  # Each of them is a panic of the library, a bare Exception, or a table of
  # 2**32 rows.
  @parameterized.named_parameters(
      ('empty', {}, 'does not parse'),
      ('null', _tokenizer() | {'model': None}, 'does not parse'),
      ('merge', _tokenizer(model={'merges': [['ab', 'a']]}), 'does not parse'),
      ('prefix', _tokenizer(model={'continuing_subword_prefix': '#' * 14}),
       'does not parse'),
      ('id_twice', _tokenizer(model={'vocab': {'a': 0, 'b': 0}}),
       'the id 0 to several'),
      ('id_large', _tokenizer(model={'vocab': {'a': 2**32 - 1, 'b': 1}}),
       "'a' the id 4294967295"),
      ('id_negative', _tokenizer(model={'vocab': {'a': -1}}), 'the id -1'),
      ('id_text', _tokenizer(model={'vocab': {'a': '0'}}), "the id '0'"),
      ('charsmap', _tokenizer(normalizer={
          'type': 'Precompiled', 'precompiled_charsmap': 'AAAA'}), 'Precomp'),
      ('charsmap_in_use', _tokenizer(normalizer={
          'type': 'Precompiled', 'precompiled_charsmap': 'A' * 16}),
       'out of bounds'),
      ('pattern', _tokenizer(pre_tokenizer={
          **_SPLIT, 'pattern': {'Regex': '('}}), 'parenthesis'),
      ('pattern_without_end', _tokenizer(pre_tokenizer={
          **_SPLIT, 'pattern': {'Regex': '(a+)+$x'}}), 'retry-limit'),
      ('chunk', _tokenizer(pre_tokenizer={'type': 'FixedLength', 'length': 0}),
       'chunk size'),
      ('strip', _tokenizer(decoder={
          'type': 'Strip', 'content': 'a', 'start': 9, 'stop': 9}),
       'out of bounds'),
  )
  def test_K54_tokenizer_json_of_an_absurd_shape(self, content, line):
    self.write(content)
    with self.assertRaisesRegex(ValueError, f'tokenizer.json: .*{line}'):
      tokenizer_lib.Tokenizer.from_folder(self.folder)

  def test_K54_nothing_of_a_panic_reaches_the_terminal(self):
    self.write(_tokenizer(model={'merges': [['ab', 'a']]}))
    code = (
        'import pathlib, sys\n'
        'from rl_tpu.text import tokenizer_files\n'
        'try:\n'
        '  tokenizer_files.read(pathlib.Path(sys.argv[1]))\n'
        'except ValueError as error:\n'
        '  print(error)\n'
    )
    found = subprocess.run(
        [sys.executable, '-c', code, self.folder / 'tokenizer.json'],
        capture_output=True, text=True, check=True, cwd=tiny.ROOT,
    )
    self.assertLen(found.stdout.splitlines(), 1)
    self.assertEqual(found.stderr, '')

  @parameterized.parameters(
      ('eos_token', 3), ('eos_token', ['</s>']), ('pad_token', {'id': 1}),
      ('bos_token', {'content': None, 'x': 1} | {'content': 5}),
      ('pad_token_id', 1.0), ('pad_token_id', True),
      ('added_tokens_decoder', ['<s>']), ('chat_template', 5),
      ('chat_template', ['{{ a }}']), ('chat_template', [{'name': 'x'}]),
  )
  def test_K54_members_of_another_kind(self, name, value):
    for file in ('tokenizer_config.json', 'special_tokens_map.json'):
      path = pathlib.Path(self.create_tempdir().full_path) / file
      with self.assertRaisesRegex(ValueError, f'{file}: {name} = '):
        tokenizer_files.check_config(path, {name: value})
      self.write(_tokenizer())
      self.write({name: value}, file)
      with self.assertRaisesRegex(ValueError, f'{file}: {name} = '):
        tokenizer_lib.Tokenizer.from_folder(self.folder)
      (self.folder / file).unlink()


if __name__ == '__main__':
  absltest.main()
