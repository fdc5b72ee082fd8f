"""Truncated sampling, trained on with the support that was sampled from."""

import dataclasses
import json
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest

from rl_tpu import trainer
from rl_tpu.records import jsonl
from tests import tiny


def run(model: str, workdir: pathlib.Path, **sampling) -> list[dict]:
  """The lines of two updates under other sampling settings."""
  config = tiny.experiment(model, steps=2)
  config = dataclasses.replace(
      config,
      sampling=dataclasses.replace(config.sampling, **sampling),
      policy=dataclasses.replace(
          config.policy,
          baseline=(
              'decoupled' if sampling.get('allow_unreplayable') else 'behavior'
          ),
      ),
      evaluation=dataclasses.replace(
          config.evaluation, temperatures=(1.0,), final_tasks=2
      ),
  )
  trainer.train(config, str(workdir))
  text = (workdir / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  return [line for line in lines if 'policy/behaviour_gap_max' in line]


class SamplingSupportTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder)
    self.model = tiny.model_folder(self.folder)

  def test_L16_O5_ratios_are_exact_under_the_recorded_support(self):
    workdir = self.folder / 'replayed'
    (line,) = run(self.model, workdir, top_k=20, top_p=0.8)
    self.assertLess(line['policy/behaviour_gap_max'], 1e-4)
    for rollout in jsonl.read(jsonl.rollouts_path(workdir, 2)):
      for segment in rollout.segments:
        count = segment.support.count[segment.is_action]
        self.assertTrue(np.all((count >= 1) & (count <= 20)), count)
    # The same draws without the record: the gap that replaying takes away.
    (line,) = run(
        self.model, self.folder / 'not', top_k=20, top_p=0.8,
        allow_unreplayable=True,
    )
    self.assertGreater(line['policy/behaviour_gap_max'], 0.1)


if __name__ == '__main__':
  absltest.main()
