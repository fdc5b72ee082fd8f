"""O4: whole runs whose sampler is another one than the trainer's policy."""

import contextlib
import dataclasses
import io
import json
import pathlib
import shutil
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import opening
from rl_tpu.cli import main
from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.metrics import tags
from rl_tpu.models import decode
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.records import jsonl
from rl_tpu.sampler import weights as weights_lib
from tests import tiny

_EXPERIMENT = """
from rl_tpu.config import loading

def get_config():
  return loading.load({path!r})
"""
# The line has to say which gate it is, and that nothing is trained.
_SAID = ('the gate ALIGNED is closed', 'alignment.max_abs', 'no update is made')


def _with_layers(folder: pathlib.Path) -> str:
  """The tiny model with two layers, so that they can be exchanged."""
  source = pathlib.Path(tiny.model_folder(folder))
  config = dataclasses.replace(huggingface.read_config(source), num_layers=2)
  huggingface.save(
      folder / 'two',
      config,
      decoder.init_params(config, jax.random.key(0)),
      tokenizer_files=[
          path for path in source.iterdir()
          if path.name not in ('config.json', 'model.safetensors')
      ],
  )
  return str(folder / 'two')


@contextlib.contextmanager
def _publishes(change):
  """The weights that are served are those of changed parameters."""
  whole = weights_lib.PolicyStore.publish
  with mock.patch.object(
      weights_lib.PolicyStore, 'publish',
      lambda store, version, params: whole(store, version, change(params)),
  ):
    yield


def _stale():
  """The copy of the first publication stays; only its version is new."""
  first = []

  def change(params):
    # What is published may be given away by the next step.
    first.append(first[0] if first else jax.tree.map(np.asarray, params))
    return jax.tree.map(jax.numpy.asarray, first[0])

  return _publishes(change)


def _swapped():
  """The layers of the copy stand in another order."""
  return _publishes(
      lambda params: params
      | {'layers': jax.tree.map(lambda x: x[::-1], params['layers'])}
  )


@contextlib.contextmanager
def _scores(change):
  """The sampler's steps get other arguments."""
  whole = decode.forced_scores

  def forced_scores(weights, token, start, temperature, *, support_SCM, **how):
    temperature, support_SCM = change(temperature, support_SCM)
    return whole(
        weights, token, start, temperature, support_SCM=support_SCM, **how
    )

  with mock.patch.object(decode, 'forced_scores', forced_scores):
    yield


def _wrong_temperature():
  return _scores(lambda temperature, support: (1.25 * temperature, support))


def _wrong_support():
  """The last of a token's few ids is left out of those it is drawn from."""
  return _scores(
      lambda temperature, support: (temperature, support.at[..., -1].set(-1))
  )


FAULTS = {
    'stale': _stale,
    'swapped_layers': _swapped,
    'wrong_temperature': _wrong_temperature,
    'wrong_support': _wrong_support,
}


class AlignmentRunTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder)
    cls.config = overrides.apply(
        tiny.experiment(_with_layers(cls.folder), steps=3),
        [
            'alignment.every=1', 'checkpoint.every=1',
            'evaluation.tasks=1', 'evaluation.final_tasks=1',
            'evaluation.temperatures=1', 'actor_optimizer.learning_rate=0.01',
            # The tiny model solves nothing: this moves it all the same.
            'actor_optimizer.weight_decay=1',
            # No critic: fewer programs.
            'advantage.estimator=grpo', 'group.size=4',
            'batching.tasks_per_batch=2', 'critic.warmup_steps=0',
            'critic.holdout_fraction=0',
        ],
    )
    loading.save(cls.config, cls.folder / 'settings.json')
    cls.experiment = cls.folder / 'experiment.py'
    cls.experiment.write_text(
        _EXPERIMENT.format(path=str(cls.folder / 'settings.json'))
    )
    code, err = cls.train('whole', '--set=steps=1')
    assert code == 0, err

  @classmethod
  def train(cls, name: str, *words: str) -> tuple[int, str]:
    """Exit code and standard error of the command."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      with contextlib.redirect_stdout(io.StringIO()):
        code = main.main([
            'train', f'--experiment={cls.experiment}',
            f'--workdir={cls.folder / name}', *words,
        ])
    return code, err.getvalue()

  def lines(self, name: str) -> list[dict]:
    text = (self.folder / name / 'metrics.jsonl').read_text()
    return [json.loads(line) for line in text.splitlines()]

  def refusal(self, err: str) -> str:
    (line,) = [l for l in err.splitlines() if l.startswith('rl_tpu: ')]
    for part in _SAID:
      self.assertIn(part, line)
    return line

  @parameterized.parameters(*FAULTS)
  def test_O4_a_fault_from_a_publication_on_ends_the_updates(self, fault):
    # A copy of a run of one update, whose second publication is wrong. The
    # stale copy is that of the resume.
    shutil.copytree(self.folder / 'whole', self.folder / fault)
    opened = opening.open_run

    @contextlib.contextmanager
    def open_run(*args, **how):
      with contextlib.ExitStack() as stack:
        if fault == 'stale':
          stack.enter_context(FAULTS[fault]())
        run = stack.enter_context(opened(*args, **how))
        if fault != 'stale':
          stack.enter_context(FAULTS[fault]())
        yield run

    with mock.patch.object(opening, 'open_run', open_run):
      code, err = self.train(fault)
    self.assertEqual(code, 1, err)
    line = self.refusal(err)
    self.assertIn('update 2: ', line)
    self.assertIn(f'{fault}/checkpoints/1', line)
    # The third one is not begun, and what the second one made is not kept.
    self.assertEqual(jsonl.steps(self.folder / fault), [1])
    last = self.lines(fault)[-1]
    self.assertEqual((last['step'], last['run/gate']), (2, 2.0))
    self.assertEqual(tags.unknown(set(last) - {'step', 'time'}), [])

  def test_O4_O8_a_fault_at_a_resume_lets_no_update_happen(self):
    shutil.copytree(self.folder / 'whole', self.folder / 'resumed')
    before = len(self.lines('resumed'))
    with _wrong_support():
      code, err = self.train('resumed')
    self.assertEqual(code, 2, err)
    self.refusal(err)
    self.assertEqual(jsonl.steps(self.folder / 'resumed'), [1])
    (line,) = self.lines('resumed')[before:]
    self.assertEqual((line['step'], line['run/gate']), (1, 2.0))
    # The very same command goes on once the sampler is mended.
    code, err = self.train('resumed', '--set=steps=2')
    self.assertEqual(code, 0, err)
    self.assertEqual(jsonl.steps(self.folder / 'resumed'), [1, 2])

  def test_O4_a_fault_at_the_start_leaves_nothing(self):
    (self.folder / 'empty').mkdir()
    with _swapped():
      code, err = self.train('empty')
    self.assertEqual(code, 2, err)
    self.refusal(err)
    self.assertEmpty(list((self.folder / 'empty').iterdir()))


if __name__ == '__main__':
  absltest.main()
