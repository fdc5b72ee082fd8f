"""What users get wrong: one line that says what, exit code 2, nothing written.

Each case goes through the command line as a user does, over a tiny model that
trains, and says which words a user needs to find in the line.
"""

import contextlib
import io
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.cli import main
from rl_tpu.cli import verbs
from tests import tiny
from tests.cli import broken_inputs


class BrokenInputsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.mkdtemp()
    cls.addClassCleanup(shutil.rmtree, folder)
    cls.model = tiny.model_folder(folder)

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    shutil.copytree(self.model, self.folder / 'model')
    text = broken_inputs.EXPERIMENT.format(settings=[])
    self.write('experiment.py', lambda _: text.encode())
    begun = AssertionError('the work has begun')
    self.enter_context(
        mock.patch.object(verbs.Phase, 'begin', side_effect=begun)
    )

  def write(self, name: str, change: broken_inputs.Change) -> None:
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if change is None:
      path.unlink()
      return
    if callable(change):
      change = change(path.read_bytes() if path.exists() else b'')
    path.write_bytes(change.replace(b'HERE', str(self.folder).encode()))

  def found(self) -> dict[str, bytes | None]:
    """Everything in the folder; what Python keeps of modules is not ours."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in self.folder.rglob('*')
        if '__pycache__' not in path.parts
    }

  @parameterized.named_parameters(broken_inputs.CASES.items())
  def test_is_one_line_and_writes_nothing(self, case):
    for name, change in case.files.items():
      self.write(name, change)
    here = lambda text: text.replace('HERE', str(self.folder))
    before = self.found()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = main.main([here(word) for word in case.words])
    self.assertEqual(code, 2, err.getvalue())
    self.assertEqual(out.getvalue(), '')
    self.assertLen(err.getvalue().splitlines(), 1, err.getvalue())
    self.assertStartsWith(err.getvalue(), 'rl_tpu: ')
    for part in case.named:
      self.assertIn(here(part), err.getvalue())
    self.assertEqual(self.found(), before)

  def test_what_is_not_broken_begins(self):
    for words, files in (
        (broken_inputs.TRAIN, {}),
        (broken_inputs.TRAIN, broken_inputs.rows(broken_inputs.GOOD_ROW).files),
        (broken_inputs.SCORE, {'ids.jsonl': b'{"ids": [1, 2]}\n'}),
    ):
      for name, change in files.items():
        self.write(name, change)
      err = io.StringIO()
      with contextlib.redirect_stderr(err):
        self.assertEqual(main.main(
            [word.replace('HERE', str(self.folder)) for word in words]
        ), 1)
      self.assertIn('the work has begun', err.getvalue())
      shutil.rmtree(self.folder / 'run', ignore_errors=True)


if __name__ == '__main__':
  absltest.main()
