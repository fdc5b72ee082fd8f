"""C10, L6, L13, L18, L19, L20: a run that uses all of it, and its resume."""

import dataclasses
import json
import pathlib

from absl.testing import absltest

from rl_tpu import trainer
from rl_tpu.config import schema
from rl_tpu.metrics import tags
from tests import tiny


def experiment(model: str, steps: int) -> schema.ExperimentConfig:
  """One network with two heads, corrected ratios and a KL schedule."""
  base = tiny.experiment(model, steps=steps)
  return dataclasses.replace(
      base,
      policy=schema.PolicyConfig(
          baseline='decoupled', correction='seq_mis'
      ),
      kl=schema.KlConfig('loss', 'k2', ((0, 0.1), (4, 0.0))),
      loss=schema.LossConfig(
          aggregation='rollout_mean', renormalise_gated=True,
          entropy_coef=0.001, entropy_by_type={'tool_name': 0.01},
          value_coef=0.5,
      ),
      critic=schema.CriticConfig(
          sharing='shared_backbone', head='hl_gauss', vmin=-1.0, vmax=2.0,
          head_bias=0.3, holdout_fraction=0.2,
      ),
      evaluation=dataclasses.replace(
          base.evaluation, every=0, tasks=2, final_tasks=2
      ),
      log=dataclasses.replace(base.log, source_grad_every=1),
  )


class ObjectiveRunTest(absltest.TestCase):

  def test_a_shared_backbone_trains_is_saved_and_goes_on(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    model = tiny.model_folder(folder)
    workdir = str(folder / 'run')
    trainer.train(experiment(model, 2), workdir)
    summary = trainer.train(experiment(model, 3), workdir)
    self.assertEqual(summary['updates'], 3)
    lines = [
        json.loads(line)
        for line in (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
    ]
    updates = [line for line in lines if 'loss/policy' in line]
    self.assertEqual([line['step'] for line in updates], [1, 2, 3])
    names = {name for line in lines for name in line}
    self.assertEqual(tags.unknown(names - {'step', 'time'}), [])
    for line in updates:
      # Cross entropy over 51 bins is not half a square.
      self.assertGreater(line['loss/value'], 0.5)
      self.assertEqual(line['policy/steps_skipped'], 0)
      self.assertGreater(line['policy/type/stop/count'], 0)
      self.assertGreater(line['policy/grad_norm_source/reasoning_gym'], 0.0)
      # The sampler served what the trainer trained.
      self.assertLess(line['policy/behaviour_gap_max'], 1e-4)


if __name__ == '__main__':
  absltest.main()
