"""Overrides: types, unknown names, free names (K39)."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.config import schema


def experiment(**changes) -> schema.ExperimentConfig:
  return schema.ExperimentConfig('test', **changes)


class OverridesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('clip.dual=None', 'clip.dual', None),
      ('name=1e5', 'name', '1e5'),
      ('name=true', 'name', 'true'),
      ('budgets.budget_visible=true', 'budgets.budget_visible', True),
      ('budgets.budget_visible=False', 'budgets.budget_visible', False),
      ('gae.gamma=3', 'gae.gamma', 3.0),
      ('time_limit_s=2.5', 'time_limit_s', 2.5),
      ('steps=7', 'steps', 7),
      ('kl.in=loss', 'kl.in_', 'loss'),
      ('sampler.prefill_buckets=32,64', 'sampler.prefill_buckets', (32, 64)),
      ('sampler.prefill_buckets=[32]', 'sampler.prefill_buckets', (32,)),
      ('evaluation.temperatures=1', 'evaluation.temperatures', (1.0,)),
      ('sampling.stop=["\\n"]', 'sampling.stop', ('\n',)),
      ('budgets.window=96', 'budgets.window', 96),
      ('termination.max_missing=0.5', 'termination.max_missing', 0.5),
      ('model.path=a=b', 'model.path', 'a=b'),
  )
  def test_K39_value_has_the_type_of_its_field(self, text, path, expected):
    config = experiment(clip=schema.ClipConfig(dual=3.0))
    found = overrides.apply(config, [text])
    for part in path.split('.'):
      found = getattr(found, part)
    self.assertEqual(found, expected)
    self.assertIs(type(found), type(expected))

  @parameterized.parameters(
      ('steps=abc', 'steps', 'a whole number'),
      ('steps=1e5', 'steps', 'a whole number'),
      ('gae.gamma=high', 'gae.gamma', 'a number'),
      ('gae.gamma=nan', 'gae.gamma', 'a number'),
      ('gae.gamma=None', 'gae.gamma', 'a number'),
      ('budgets.budget_visible=0', 'budgets.budget_visible', 'true or false'),
      ('clip.dual=true', 'clip.dual', 'a number or None'),
      ('reward.weights.tool=abc', 'reward.weights.tool', 'a number'),
      ('sampler.prefill_buckets=1,b', 'sampler.prefill_buckets', 'a list'),
      ('gae=1', 'gae', 'gae.gamma'),
      ('sft.steps=3', 'sft.steps', 'no sft section'),
      ('gae.gamma', 'gae.gamma', 'path=value'),
  )
  def test_K39_wrong_type_is_refused(self, text, path, wanted):
    with self.assertRaises(ValueError) as caught:
      overrides.apply(experiment(), [text])
    self.assertIn(path, str(caught.exception))
    self.assertIn(wanted, str(caught.exception))
    self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters(
      ('gae.lamda_policy.fixed=0.9', 'gae.lambda_policy.fixed'),
      ('gae.dual=3', 'clip.dual'),
      ('batching.rolength=64', 'batching.row_length'),
      ('learning_rate=1e-3', 'actor_optimizer.learning_rate'),
      ('clip.eps_low.x=1', 'clip.eps_low'),
      ('gae.lamda=1', 'gae.lambda_policy.fixed'),
      ('sft.stepz=1', None),
  )
  def test_K39_unknown_name_is_refused_with_the_nearest(self, text, nearest):
    with self.assertRaises(ValueError) as caught:
      overrides.apply(experiment(), [text])
    self.assertIn(text.split('=')[0], str(caught.exception))
    if nearest:
      self.assertIn(f'did you mean {nearest}?', str(caught.exception))

  def test_free_names_are_added_and_kept_apart(self):
    config = experiment(
        environment=schema.EnvironmentConfig(
            settings={'label': 'x', 'on': False, 'share': 0.5, 'deep': {'a': 1}}
        )
    )
    found = overrides.apply(
        config,
        [
            'reward.weights.tool_valid=0.1',
            'environment.settings.label=1e5',
            'environment.settings.on=true',
            'environment.settings.share=1',
            'environment.settings.deep.a=2',
            'environment.settings.new=[1, 2]',
            'environment.settings.text=plain',
        ],
    )
    self.assertEqual(found.reward.weights, {'terminal': 1.0, 'tool_valid': 0.1})
    self.assertEqual(
        found.environment.settings,
        {
            'label': '1e5',
            'on': True,
            'share': 1.0,
            'deep': {'a': 2},
            'new': [1, 2],
            'text': 'plain',
        },
    )
    self.assertEqual(config.reward.weights, {'terminal': 1.0})
    with self.assertRaisesRegex(ValueError, 'environment.settings.on'):
      overrides.apply(config, ['environment.settings.on=3'])

  def test_setting_one_form_of_lambda_clears_the_other(self):
    found = overrides.apply(
        experiment(), ['gae.lambda_policy.length_adaptive=1.5']
    )
    self.assertEqual(
        found.gae.lambda_policy, schema.LambdaConfig(length_adaptive=1.5)
    )
    found = overrides.apply(found, ['gae.lambda_policy.fixed=0.97'])
    self.assertEqual(found.gae.lambda_policy, schema.LambdaConfig(fixed=0.97))

  def test_later_assignment_wins(self):
    found = overrides.apply(experiment(), ['steps=3', 'steps=4'])
    self.assertEqual(found.steps, 4)
    self.assertEqual(loading.differences(experiment(), found), ['steps'])

  def test_optional_section_can_be_emptied(self):
    config = experiment(sft=schema.SftConfig())
    self.assertEqual(overrides.apply(config, ['sft.steps=3']).sft.steps, 3)
    self.assertIsNone(overrides.apply(config, ['sft=None']).sft)


if __name__ == '__main__':
  absltest.main()
