"""The warm start: demonstrations are imitated and the export loads."""

import dataclasses
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest

from rl_tpu import sft
from rl_tpu.assembly import warm_start
from rl_tpu.config import loading
from rl_tpu.metrics import writers
from rl_tpu.models import huggingface
from rl_tpu.text import tokenizer as tokenizer_lib
from tests import tiny

SFT = tiny.ROOT / 'experiments' / 'arithmetic_tools_sft.py'


class SftTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder)
    base = loading.load_experiment(SFT)
    cls.config = dataclasses.replace(
        base,
        batching=dataclasses.replace(base.batching, rows_per_microbatch=16),
        sft=dataclasses.replace(
            base.sft,
            steps=8,
            rollouts_per_step=4,
            out=str(cls.folder / 'export'),
            model=dict(base.sft.model, width=32, num_layers=1, num_heads=1,
                       num_kv_heads=1, mlp_width=32),
            optimizer=dataclasses.replace(
                base.sft.optimizer, warmup_steps=0, learning_rate=1e-2
            ),
        ),
    )

  def test_the_loss_falls_and_the_export_loads(self):
    workdir = str(self.folder / 'work')
    summary = sft.run(self.config, workdir)
    self.assertEqual(summary['steps'], 8)
    lines = list(writers.read_jsonl(pathlib.Path(workdir) / 'metrics.jsonl'))
    losses = [line['loss/nll'] for line in lines]
    self.assertLen(losses, 8)
    self.assertLess(losses[-1], losses[0] - 0.3)
    config, params = huggingface.load(summary['out'])
    tokenizer = tokenizer_lib.Tokenizer.from_folder(summary['out'])
    self.assertEqual(config.vocab_size, tokenizer.size)
    self.assertEqual(params['embed']['embedding'].shape, (tokenizer.size, 32))

  def test_demonstrations_are_reproducible_and_fresh(self):
    start = warm_start.build(self.config)
    self.addCleanup(start.close)
    tokens = lambda rollouts: [
        s.token.tolist() for r in rollouts for s in r.segments
    ]
    first = tokens(start.demonstrate(1))
    self.assertEqual(first, tokens(start.demonstrate(1)))
    self.assertNotEqual(first, tokens(start.demonstrate(2)))

  def test_half_of_the_demonstrations_skip_the_tool(self):
    start = warm_start.build(self.config)
    self.addCleanup(start.close)
    rollouts = [r for step in range(1, 31) for r in start.demonstrate(step)]
    calls = sum(r.counters.get('tool_calls', 0) for r in rollouts)
    problems = 3 * len(rollouts)
    # 360 fair choices: five standard errors are 0.13.
    np.testing.assert_allclose(calls / problems, 0.5, atol=0.13)


if __name__ == '__main__':
  absltest.main()
