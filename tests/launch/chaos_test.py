"""The short form of `python -m tests.chaos`: killed runs end as a whole one."""

import argparse
import io
import pathlib
import tempfile

from absl.testing import absltest
import rich.console

from tests import tiny
from tests.chaos import __main__ as chaos
from tests.launch import chatter


class ChaosTest(absltest.TestCase):

  def test_O9_a_killed_run_ends_in_the_very_same_state(self):
    folder = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    text = io.StringIO()
    code = chaos.check(
        argparse.Namespace(
            kills=2, devices=1, processes=1, steps=3, seed=1
        ),
        chatter.write_experiment(folder, tiny.model_folder(folder)),
        folder,
        rich.console.Console(file=text, width=120),
    )
    self.assertEqual(code, 0, text.getvalue())
    self.assertIn('2 kills', text.getvalue())
    self.assertIn('nobody killed: nothing', text.getvalue())


if __name__ == '__main__':
  absltest.main()
