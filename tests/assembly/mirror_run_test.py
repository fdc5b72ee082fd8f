"""O7: a run whose work directory is elsewhere, taken up on another machine."""

import dataclasses
import json
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest

from rl_tpu import trainer
from rl_tpu.checkpointing import mirror as mirror_lib
from tests import tiny


class MirrorRunTest(absltest.TestCase):

  def test_O7_files_arrive_and_the_run_goes_on_from_them(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    elsewhere = folder / 'bucket' / 'first'
    # A folder stands for the bucket: only the beginning of its name is asked.
    self.enter_context(
        mock.patch.object(mirror_lib, 'REMOTE', str(folder / 'bucket'))
    )
    self.enter_context(
        mock.patch.object(mirror_lib, '_check_package', lambda workdir: None)
    )
    config = tiny.experiment(tiny.model_folder(folder), steps=1)
    config = dataclasses.replace(
        config, batching=dataclasses.replace(config.batching, tasks_per_batch=4)
    )
    summary = trainer.train(config, str(elsewhere))
    self.assertEqual(summary['workdir'], str(elsewhere))
    trainer.train(dataclasses.replace(config, steps=2), str(elsewhere))

    lines = (elsewhere / 'metrics.jsonl').read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    steps = [line['step'] for line in lines if 'reward/success' in line]
    self.assertEqual(steps, [1, 2])
    for name in ('config.json', 'rollouts/000001.jsonl',
                 'rollouts/000002.jsonl', 'checkpoints/2/state'):
      self.assertTrue((elsewhere / name).exists(), name)
    self.assertLen(list(elsewhere.glob('tb/events.out.*')), 2)


if __name__ == '__main__':
  absltest.main()
