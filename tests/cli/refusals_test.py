"""Mistakes that only the parts themselves can find: one line, exit code 2."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.cli import main
from tests import tiny

_EXPERIMENT = """
from tests import tiny

def get_config():
  return tiny.experiment({model!r})
"""


def call(*words: str) -> tuple[int, str]:
  """Exit code and standard error of a command."""
  err = io.StringIO()
  with contextlib.redirect_stderr(err):
    with contextlib.redirect_stdout(io.StringIO()):
      code = main.main(words)
  return code, err.getvalue()


class RefusalsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.mkdtemp()
    cls.addClassCleanup(shutil.rmtree, folder)
    cls.source = tiny.model_folder(folder)

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.model = self.folder / 'model'
    shutil.copytree(self.source, self.model)
    self.experiment = self.folder / 'tiny_experiment.py'
    self.experiment.write_text(_EXPERIMENT.format(model=str(self.model)))
    self.workdir = self.folder / 'work'

  def refused(self, *overrides: str) -> str:
    """The line of a refusal; nothing was started or written."""
    code, err = call(
        'train',
        f'--experiment={self.experiment}',
        f'--workdir={self.workdir}',
        *[f'--set={override}' for override in overrides],
    )
    self.assertEqual(code, 2, err)
    self.assertLen(err.strip().splitlines(), 1, err)
    self.assertFalse(self.workdir.exists())
    return err

  @parameterized.parameters(
      ('budgets.window=32', 'budgets.window'),
      ('mesh.data=3', 'mesh'),
      ('mesh.tensor=3', 'mesh'),
      ('batching.rows_per_microbatch=12', 'batching.rows_per_microbatch'),
      ('sampler.slots=12', 'sampler.slots'),
      ('sampling.stop=zz', "'zz'"),
      ('reward.weights.tool_vaild=0.1', 'tool_valid'),
      ('environment.settings.problem=3', 'problems'),
      ('tasks.settings.problems=2', 'problems'),
      ('model.template_variables.date=1', 'template_variables.date = 1: the'),
      ('advantage.estimator=grpo', 'group.size'),
      ('steps=0', 'steps'),
  )
  def test_a_setting_that_cannot_work(self, override, named):
    self.assertIn(named, self.refused(override))

  def test_O5_a_support_that_is_not_recorded(self):
    message = self.refused('sampling.top_p=0.9', 'sampling.max_support=0')
    self.assertIn('sampling.top_p=0.9', message)

  def test_K19_no_end_token_anywhere(self):
    (self.model / 'tokenizer_config.json').write_text('{}')
    self.assertIn('sampling.stop = ()', self.refused('sampling.stop=[]'))
    (self.model / 'generation_config.json').write_text(
        '{"eos_token_id": [0, 1, 2, 3, 4]}'
    )
    self.assertIn('5 end tokens', self.refused('sampling.stop=[]'))

  def test_tools_that_the_template_would_not_show(self):
    rows = self.folder / 'rows.jsonl'
    tool = {'name': 'add', 'parameters': {}}
    row = {'prompt': '1 + 1', 'answer': '2', 'tools': [tool]}
    rows.write_text(json.dumps(row))
    settings = {'train_file': str(rows)}
    message = self.refused(
        'environment.target=rl_tpu.environments.single_turn:SingleTurn',
        'environment.settings={}',
        'reward.weights={}',
        'tasks.target=rl_tpu.tasks.rows:RowTasks',
        f'tasks.settings={settings}',
    )
    self.assertIn('does not read `tools`', message)

  def test_a_model_folder_without_config(self):
    (self.model / 'config.json').unlink()
    self.assertIn('config.json', self.refused())

  def test_K40_a_missing_shard_is_named(self):
    weights = self.model / 'model.safetensors'
    weights.rename(self.model / 'model-00001-of-00002.safetensors')
    index = {
        'weight_map': {
            'model.norm.weight': 'model-00001-of-00002.safetensors',
            'lm_head.weight': 'model-00002-of-00002.safetensors',
        }
    }
    (self.model / 'model.safetensors.index.json').write_text(json.dumps(index))
    self.assertIn('model-00002-of-00002.safetensors', self.refused())

  def test_a_tokenizer_larger_than_the_model(self):
    path = self.model / 'tokenizer.json'
    content = json.loads(path.read_text())
    vocabulary = content['model']['vocab']
    for extra in range(20):
      vocabulary[f'extra{extra}'] = len(vocabulary)
    path.write_text(json.dumps(content))
    self.assertIn('tokenizer', self.refused())

  def test_O7_a_part_that_no_checkpoint_has(self):
    code, err = call(
        'train',
        f'--experiment={self.experiment}',
        f'--workdir={self.workdir}',
        '--allow_partial=cursor,critics',
    )
    self.assertEqual(code, 2, err)
    self.assertLen(err.strip().splitlines(), 1, err)
    self.assertIn('--allow_partial=critics: ', err)
    self.assertIn('did you mean critic?', err)
    self.assertFalse(self.workdir.exists())

  def test_the_directory_of_another_experiment(self):
    os.makedirs(self.workdir)
    config = tiny.loading.to_dict(tiny.experiment(str(self.model)))
    config['name'] = 'other'
    (self.workdir / 'config.json').write_text(json.dumps(config))
    code, err = call(
        'train',
        f'--experiment={self.experiment}',
        f'--workdir={self.workdir}',
    )
    self.assertEqual(code, 2, err)
    self.assertIn("'other'", err)
    self.assertEqual(os.listdir(self.workdir), ['config.json'])


if __name__ == '__main__':
  absltest.main()
