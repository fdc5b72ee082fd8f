"""Two `train` in one directory: the second is refused; a kill frees it."""

import contextlib
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest

from rl_tpu import sft
from rl_tpu.assembly import opening
from rl_tpu.checkpointing import lease
from rl_tpu.checkpointing import machine
from rl_tpu.cli import main
from rl_tpu.config import loading
from rl_tpu.records import jsonl
from rl_tpu.types import stops
from tests import tiny

_EXPERIMENT = """
import dataclasses
from tests import tiny

def get_config():
  config = tiny.experiment({model!r}, steps=500)
  return dataclasses.replace(
      config,
      checkpoint=dataclasses.replace(config.checkpoint, every=1, keep=9),
      batching=dataclasses.replace(config.batching, tasks_per_batch=4),
  )
"""


class LeaseRunTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
    self.experiment = self.folder / 'experiment.py'
    self.experiment.write_text(
        _EXPERIMENT.format(model=tiny.model_folder(self.folder))
    )
    self.workdir = self.folder / 'work'

  def call(self, verb: str, *words: str) -> tuple[int, str]:
    """Exit code and standard error of a command on the work directory."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      with contextlib.redirect_stdout(io.StringIO()):
        code = main.main([verb, f'--workdir={self.workdir}', *words])
    return code, err.getvalue()

  def until(self, reached) -> None:
    deadline = time.monotonic() + 300
    while not reached():
      self.assertIsNone(self.process.poll(), 'the first run has ended')
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.2)

  def leases(self) -> list[str]:
    return [path.name for path in self.workdir.glob('lease*')]

  def test_a_warm_start_holds_its_directory_too(self):
    held = lease.take(str(self.workdir))
    self.addCleanup(held.release)
    config = tiny.experiment(str(self.folder / 'model'))
    with self.assertRaisesRegex(ValueError, 'in use by process'):
      sft.run(config, str(self.workdir))

  def test_a_run_whose_directory_was_taken_writes_no_more(self):
    config = loading.load_experiment(self.experiment)
    with self.assertRaisesRegex(stops.RunStopped, 'this run writes no more'):
      with opening.open_run(config, str(self.workdir)) as run:
        (name,) = self.leases()
        (self.workdir / name).rename(self.workdir / 'lease-000002.json')
        # As after a minute of sleep.
        with mock.patch.object(machine, 'clock', lambda: 1e12):
          run.goes_on(lambda: False)
    self.assertEmpty(list(self.workdir.glob('checkpoints/*')))

  def test_two_runs_at_once_readers_beside_one_and_a_kill(self):
    with open(self.folder / 'log', 'w', encoding='utf-8') as log:
      self.process = subprocess.Popen(
          [
              sys.executable, '-m', 'rl_tpu', 'train',
              f'--experiment={self.experiment}', f'--workdir={self.workdir}',
          ],
          cwd=tiny.ROOT, stdout=log, stderr=log,
          env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
      )
    self.addCleanup(self.process.wait)
    self.addCleanup(self.process.kill)
    self.until(self.leases)
    code, err = self.call('train', f'--experiment={self.experiment}')
    self.assertEqual(code, 2, err)
    (line,) = err.splitlines()
    self.assertIn(f'in use by process {self.process.pid} on ', line)
    self.assertRegex(line, r'since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC;')
    self.until((self.workdir / 'checkpoints' / '2').is_dir)
    for words in (
        ('inspect',),
        ('evaluate', '--checkpoint=latest'),
        ('export', '--checkpoint=latest', f'--out={self.folder / "out"}'),
    ):
      code, err = self.call(*words)
      self.assertEqual(code, 0, err)
      self.assertIsNone(self.process.poll())

    self.process.send_signal(signal.SIGKILL)
    self.process.wait()
    self.assertLen(self.leases(), 1)
    steps = jsonl.steps(self.workdir)[-1] + 1
    began = time.monotonic()
    code, err = self.call(
        'train', f'--experiment={self.experiment}', f'--set=steps={steps}'
    )
    self.assertEqual(code, 0, err)
    self.assertEqual(jsonl.steps(self.workdir), list(range(1, steps + 1)))
    self.assertEmpty(self.leases())
    self.assertLess(time.monotonic() - began, 50)


if __name__ == '__main__':
  absltest.main()
