"""The commands of docs/pods.md are accepted as they stand there."""

import contextlib
import importlib
import io
import re
import shlex

from absl.testing import absltest

from launch import commandline
from tests.launch import tools

# What the page leaves to the reader.
_FILLED_IN = {'...': tools.EXPERIMENT, '$IMAGE': 'image', 'BUCKET': 'bucket'}


def commands() -> list[list[str]]:
  """The words of every launcher's command on the page."""
  text = (tools.ROOT / 'docs' / 'pods.md').read_text('utf-8')
  text = text.replace('\\\n', ' ')
  for placeholder, value in _FILLED_IN.items():
    text = text.replace(placeholder, value)
  found = re.findall(r'^    \.venv/bin/python -m (launch\..*)$', text, re.M)
  return [shlex.split(line) for line in found]


class DocsTest(absltest.TestCase):

  def test_every_launcher_is_shown_and_accepts_its_flags(self):
    shown = set()
    for name, *words in commands():
      module = importlib.import_module(name)
      words = [w for w in words if not w.startswith('--output=')]
      if name in ('launch.xpk', 'launch.pathways', 'launch.processes'):
        words.insert(0, '--dry-run')
      out, err = io.StringIO(), io.StringIO()
      with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = commandline.main(module.parser(), module.launch, words)
      self.assertEqual(code, 0, err.getvalue())
      shown.add(name)
    self.assertEqual(
        shown,
        {'launch.xpk', 'launch.jobset', 'launch.queued_resources',
         'launch.pathways', 'launch.processes'},
    )


if __name__ == '__main__':
  absltest.main()
