"""One program on one device and on several: the same tokens, the same state."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest

from rl_tpu.checkpointing import store
from rl_tpu.config import schema
from tests import tiny

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Takes up what is there and says every bit of it, then trains on.
_RUN = """
import dataclasses
import hashlib
import sys
import jax
import numpy as np
from rl_tpu import trainer
from rl_tpu.assembly import opening
from tests import tiny

model, workdir, *steps = sys.argv[1:]
config = tiny.experiment(model)
config = dataclasses.replace(
    config, checkpoint=dataclasses.replace(config.checkpoint, every=1)
)
for count in map(int, steps):
  config = dataclasses.replace(config, steps=count)
  with opening.open_run(config, workdir) as run:
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.state.parts):
      digest.update(jax.tree_util.keystr(path).encode())
      digest.update(np.asarray(leaf).tobytes())
    print(run.update_index, digest.hexdigest())
  trainer.train(config, workdir)
"""


class DevicesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.folder = pathlib.Path(folder)
    cls.model = tiny.model_folder(cls.folder)
    cls.taken_up = {}
    for devices in (1, 2, 8):
      # Two updates, and a third one after a resume.
      cls.taken_up[devices] = cls.run_on(devices, f'on{devices}', 2, 3)

  @classmethod
  def run_on(cls, devices: int, name: str, *steps: int) -> dict[str, str]:
    """The digest of the state that each start has taken up, by update."""
    done = subprocess.run(
        [
            sys.executable, '-c', _RUN, cls.model, str(cls.folder / name),
            *map(str, steps),
        ],
        env=dict(
            os.environ,
            XLA_FLAGS=f'--xla_force_host_platform_device_count={devices}',
        ),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())

  def tokens(self, name: str) -> list[object]:
    return [tiny.tokens(self.folder / name, step) for step in (1, 2, 3)]

  def test_runs_on_1_2_and_8_devices_agree_token_for_token(self):
    alone = self.tokens('on1')
    for devices in (2, 8):
      found = self.tokens(f'on{devices}')
      for step, (left, right) in enumerate(zip(alone, found), 1):
        self.assertEqual(left, right, f'update {step} on {devices} devices')

  def test_O7_a_run_goes_on_with_another_number_of_devices(self):
    for left, right in ((8, 1), (1, 8)):
      name = f'from{left}to{right}'
      shutil.copytree(self.folder / f'on{left}', self.folder / name)
      kept = store.CheckpointStore(
          str(self.folder / name / 'checkpoints'), schema.CheckpointConfig()
      )
      self.assertEqual(kept.steps(), [2, 3])
      kept.close()
      shutil.rmtree(self.folder / name / 'checkpoints' / '3')
      taken_up = self.run_on(right, name, 3)
      # Every bit of parameters and optimizers is that of the other devices;
      # what they then train differs in the last digits, their tokens do not.
      self.assertEqual(taken_up, {'2': self.taken_up[left]['2']})
      self.assertEqual(self.tokens(name), self.tokens(f'on{left}'))


if __name__ == '__main__':
  absltest.main()
