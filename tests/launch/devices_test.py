"""One program on one device and on several: the same tokens."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest

from tests import tiny

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_RUN = """
import sys
from rl_tpu import trainer
from tests import tiny
config = tiny.experiment(sys.argv[1], steps=3)
trainer.train(config, sys.argv[2])
"""


class DevicesTest(absltest.TestCase):

  def test_runs_on_1_2_and_8_devices_agree_token_for_token(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    model = tiny.model_folder(folder)
    found = {}
    for devices in (1, 2, 8):
      workdir = str(folder / f'on{devices}')
      subprocess.run(
          [sys.executable, '-c', _RUN, model, workdir],
          env=dict(
              os.environ,
              XLA_FLAGS=f'--xla_force_host_platform_device_count={devices}',
          ),
          cwd=ROOT,
          check=True,
          capture_output=True,
      )
      found[devices] = [tiny.tokens(workdir, step) for step in (1, 2, 3)]
    for devices in (2, 8):
      for step, (left, right) in enumerate(zip(found[1], found[devices]), 1):
        self.assertEqual(left, right, f'update {step} on {devices} devices')


if __name__ == '__main__':
  absltest.main()
