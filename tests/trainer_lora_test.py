"""A run that trains adapters: start, resume, reference, export."""

import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import absltest

from rl_tpu import trainer
from rl_tpu.assembly import exporting
from rl_tpu.config import overrides
from rl_tpu.models import huggingface
from rl_tpu.models import peft
from rl_tpu.records import jsonl
from tests import tiny
from tests import trainer_test


class LoraRunTest(absltest.TestCase):

  def test_adapters_train_go_on_and_are_exported(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    config = overrides.apply(
        tiny.experiment(tiny.model_folder(folder), steps=3),
        ['model.lora.rank=2', 'kl.in=loss', 'kl.estimator=k3', 'kl.coef=0.1',
         'critic.warmup_steps=0', 'checkpoint.every=1',
         'batching.minibatches=1'],
    )
    workdir = str(folder / 'work')
    asked = iter([False, True])
    trainer.train(config, workdir, stop=lambda: next(asked))
    trainer.train(config, workdir)
    lines = [
        l for l in trainer_test.lines(workdir) if 'policy/kl_reference_k3' in l
    ]
    self.assertLen(lines, 3)
    # The reference is the base, which a new adapter does not change.
    self.assertLess(abs(lines[0]['policy/kl_reference_k3']), 1e-6)
    self.assertGreater(abs(lines[2]['policy/kl_reference_k3']), 1e-6)
    source = exporting.read(
        config, workdir, checkpoint='latest', with_critic=True
    )
    exporting.write(source, folder / 'merged')
    _, before = huggingface.load(config.model.path)
    _, after = huggingface.load(folder / 'merged')
    moved = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()), before, after
    )
    self.assertEqual(moved['embed']['embedding'], 0.0)
    self.assertEqual(moved['layers']['mlp_norm']['scale'], 0.0)
    for name in config.model.lora.targets:
      self.assertGreater(moved['layers'][name]['kernel'], 0.0, name)
    exporting.write_adapters(source, folder / 'adapters')
    names = {path.name for path in (folder / 'adapters').iterdir()}
    self.assertLessEqual({peft.CONFIG, peft.TENSORS, 'tokenizer.json'}, names)
    self.assertEqual(
        [len(list(jsonl.read(jsonl.rollouts_path(workdir, s))))
         for s in (1, 2, 3)],
        [8, 8, 8],
    )


if __name__ == '__main__':
  absltest.main()
