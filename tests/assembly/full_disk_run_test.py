"""A run whose disk is full ends in one line that says where it goes on."""

import contextlib
import io
import pathlib
import resource
import shutil
import tempfile

from absl.testing import absltest

from rl_tpu.assembly import opening
from rl_tpu.cli import main
from rl_tpu.config import loading
from rl_tpu.types import stops
from tests import tiny

_EXPERIMENT = """
import dataclasses
from tests import tiny

def get_config():
  config = tiny.experiment({model!r})
  return dataclasses.replace(
      config,
      checkpoint=dataclasses.replace(config.checkpoint, every=1, keep=9),
      batching=dataclasses.replace(config.batching, tasks_per_batch=4),
  )
"""


class FullDiskRunTest(absltest.TestCase):

  def test_files_and_checkpoints_that_are_not_taken(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    # A save that has failed may have files that are still being written.
    self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    experiment = folder / 'experiment.py'
    experiment.write_text(_EXPERIMENT.format(model=tiny.model_folder(folder)))
    workdir = folder / 'work'
    # The rollouts of the second update find no room.
    (workdir / 'rollouts').mkdir(parents=True)
    (workdir / 'rollouts' / '000002.jsonl.partial').symlink_to('/dev/full')
    code, err = self.call(
        'train', f'--experiment={experiment}', f'--workdir={workdir}'
    )
    goes_on = (
        'The same command goes on from the checkpoint'
        f' {workdir}/checkpoints/1.'
    )
    self.assertEqual(code, 1)
    self.assertEqual(
        err.splitlines()[-1],
        f'rl_tpu: a file of the run: No space left on device. {goes_on}',
    )
    self.assertNotIn('Traceback', err)

    # A checkpoint is written while the run goes on, and asked for at its end.
    config = loading.load(workdir / 'config.json')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
      with self.assertRaisesRegex(
          stops.RunStopped, f'^checkpoint 2 could not be saved .*{goes_on}$'
      ):
        with opening.open_run(config, str(workdir)) as run:
          self.assertEqual(run.update_index, 1)
          run.update_index = 2
          resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
          run.save()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

  def call(self, *words: str) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      with contextlib.redirect_stdout(io.StringIO()):
        code = main.main(words)
    return code, err.getvalue()


if __name__ == '__main__':
  absltest.main()
