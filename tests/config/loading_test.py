"""Experiment files, import paths and settings as JSON."""

import dataclasses
import json
import pathlib
import sys

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.config import schema

GOOD = """
from rl_tpu.config import schema

def get_config():
  return schema.ExperimentConfig('good', steps=3)
"""


class Thing:
  """A target for `construct`."""

  def __init__(self, split: str, size: int, scale: float = 1.0):
    self.all = (split, size, scale)


class LoadExperimentTest(parameterized.TestCase):

  def write(self, text: str, name: str = 'an_experiment.py') -> pathlib.Path:
    path = pathlib.Path(self.create_tempdir().full_path) / name
    path.write_text(text, encoding='utf-8')
    return path

  def test_loads(self):
    config = loading.load_experiment(self.write(GOOD))
    self.assertEqual(config.name, 'good')
    self.assertEqual(config.steps, 3)

  def test_missing_file_is_named(self):
    with self.assertRaisesRegex(ValueError, 'nowhere/x.py: there is no such'):
      loading.load_experiment('nowhere/x.py')

  @parameterized.parameters(
      ('X = 1', r'no function get_config\(\)'),
      ('get_config = 3', r'no function get_config\(\)'),
      ('def get_config():\n  return 3', 'returned a int'),
      ('def get_config(:\n', 'line 1 is not Python'),
      ('import no_such_package_here', 'imports no_such_package_here'),
      (
          GOOD.replace('steps=3', 'stepz=3'),
          'ExperimentConfig has no field stepz; did you mean steps',
      ),
  )
  def test_faulty_file_is_refused(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      loading.load_experiment(self.write(text))

  @parameterized.parameters(
      ('def get_config():\n  return {}["a"]', "KeyError: 'a' .*, line 2"),
      ('X = {}["a"]', "KeyError: 'a' .*, line 1"),
      ('def get_config(size):\n  pass', "TypeError: .*'size'"),
  )
  def test_what_the_file_raises_is_named_with_its_line(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      loading.load_experiment(self.write(text))

  def test_neighbours_are_importable(self):
    path = self.write('from tiny_neighbour_module import get_config')
    path.with_name('tiny_neighbour_module.py').write_text(GOOD)
    self.assertEqual(loading.load_experiment(path).name, 'good')
    self.assertIn('tiny_neighbour_module', sys.modules)


class TargetTest(parameterized.TestCase):

  def test_imports(self):
    self.assertIs(
        loading.import_target('rl_tpu.config.schema:GaeConfig'),
        schema.GaeConfig,
    )

  @parameterized.parameters(
      ('rl_tpu.config.schema', 'no import path'),
      (':x', 'no import path'),
      ('no_such_module_here:X', 'no module no_such_module_here'),
      ('rl_tpu.config.nothing:X', 'no module rl_tpu.config.nothing'),
      ('rl_tpu.config.schema:GaConfig', 'did you mean GaeConfig'),
  )
  def test_faulty_target_is_refused(self, target, message):
    with self.assertRaisesRegex(ValueError, message):
      loading.import_target(target)

  def test_construct_passes_settings_and_given(self):
    target = f'{__name__}:Thing'
    sys.modules.setdefault(__name__, sys.modules[type(self).__module__])
    made = loading.construct(
        target, {'size': 3}, setting='tasks', split='train'
    )
    self.assertEqual(made.all, ('train', 3, 1.0))

  @parameterized.parameters(
      ({'sise': 3}, 'tasks.settings.sise: .*did you mean size'),
      ({}, 'tasks.settings.size: .* needs it'),
      ({'size': 3, 'split': 'x'}, 'tasks.settings.split: set by the run'),
  )
  def test_construct_refuses(self, settings, message):
    sys.modules.setdefault(__name__, sys.modules[type(self).__module__])
    with self.assertRaisesRegex(ValueError, message):
      loading.construct(
          f'{__name__}:Thing', settings, setting='tasks', split='train'
      )

  def test_construct_names_the_setting_of_a_bad_target(self):
    with self.assertRaisesRegex(ValueError, '^tasks.target: '):
      loading.construct('nothing', {}, setting='tasks')


class DictTest(parameterized.TestCase):

  def config(self) -> schema.ExperimentConfig:
    return overrides.apply(
        schema.ExperimentConfig('x', sft=schema.SftConfig()),
        [
            'kl.in=loss',
            'sampler.prefill_buckets=16,32',
            'environment.settings.deep={"a": [1, 2]}',
            'budgets.window=40',
            'clip.dual=3',
            'sft.model.width=32',
        ],
    )

  def test_K39_settings_in_force_round_trip_through_json(self):
    config = self.config()
    data = json.loads(json.dumps(loading.to_dict(config)))
    self.assertEqual(loading.from_dict(data), config)
    self.assertEqual(data['kl']['in'], 'loss')
    path = pathlib.Path(self.create_tempdir().full_path) / 'config.json'
    loading.save(config, path)
    self.assertEqual(loading.load(path), config)

  def test_missing_names_take_defaults(self):
    self.assertEqual(
        loading.from_dict({'name': 'x', 'gae': {'gamma': 0.5}}),
        schema.ExperimentConfig('x', gae=schema.GaeConfig(gamma=0.5)),
    )

  @parameterized.parameters(
      ({'name': 'x', 'gea': {}}, 'gea: .*did you mean gae'),
      ({'name': 'x', 'gae': {'gama': 1}}, 'gae.gama: .*did you mean gae.gamma'),
      ({'name': 'x', 'steps': '3'}, "steps: '3' is not a whole number"),
      ({'name': 'x', 'steps': True}, 'steps: True is not a whole number'),
  )
  def test_faulty_json_is_refused(self, data, message):
    with self.assertRaisesRegex(ValueError, message):
      loading.from_dict(data)

  def test_load_names_the_file(self):
    path = pathlib.Path(self.create_tempdir().full_path) / 'config.json'
    with self.assertRaisesRegex(ValueError, 'config.json: there is no such'):
      loading.load(path)
    path.write_text('{"name": ')
    with self.assertRaisesRegex(ValueError, 'config.json: '):
      loading.load(path)

  def test_differences_names_settings(self):
    left = self.config()
    right = overrides.apply(
        left,
        [
            'gae.cut=cut_terminal',
            'kl.in=reward',
            'environment.settings.deep.a=3',
            'reward.weights.tool=1',
        ],
    )
    self.assertEqual(loading.differences(left, left), [])
    self.assertEqual(
        loading.differences(left, right),
        ['environment.settings.deep.a', 'gae.cut', 'kl.in']
        + ['reward.weights.tool'],
    )
    without = dataclasses.replace(left, sft=None)
    self.assertIn('sft.steps', loading.differences(left, without))


if __name__ == '__main__':
  absltest.main()
