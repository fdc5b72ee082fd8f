"""E2, E5, E6, D1: what estimators and scales need of a world, at start-up."""

import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import parts
from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.rollout import session as session_lib
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib

ARITHMETIC = 'rl_tpu.environments.arithmetic_tools:ArithmeticTools'
COUNTING = 'tests.rollout.worlds:Counting'


class WorldTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.mkdtemp()
    arithmetic_tokenizer.build(folder)
    cls.tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
    cls.template = chat.ChatTemplate.from_folder(folder)

  def build(self, *assignments: str, environment=ARITHMETIC) -> parts.World:
    config = schema.ExperimentConfig(
        'test',
        environment=schema.EnvironmentConfig(target=environment),
        tasks=schema.TasksConfig(
            target='rl_tpu.tasks.arithmetic:ArithmeticTasks'
        ),
        verifier=schema.VerifierConfig(
            target='rl_tpu.verifiers.reasoning_gym:ArithmeticVerifier'
        ),
        budgets=schema.budget_lib.Budget(window=128, holds_at_eval=False),
        sampling=schema.SamplingConfig(max_turn_tokens=16),
    )
    world = parts.build_world(
        overrides.apply(config, assignments), self.tokenizer, self.template
    )
    self.addCleanup(world.close)
    return world

  def refusal(self, *assignments: str, environment=ARITHMETIC) -> str:
    with self.assertRaises(ValueError) as caught:
      self.build(*assignments, environment=environment)
    return str(caught.exception)

  def test_E6_an_environment_without_state_ids(self):
    gigpo = ('advantage.estimator=gigpo', 'group.size=2')
    message = self.refusal(*gigpo, environment=COUNTING)
    self.assertStartsWith(message, "gigpo.anchor='state': counting")
    self.assertIn('gigpo.anchor=observation', message)

  def test_E5_an_environment_without_weighted_step_rewards(self):
    process = ('advantage.estimator=process', 'group.size=2')
    message = self.refusal(*process)
    self.assertStartsWith(message, "advantage.estimator='process'")
    self.assertIn('sub_answer, tool_valid', message)
    self.assertIn(
        'none', self.refusal(*process, environment=COUNTING)
    )
    self.assertIn(
        'above 0', self.refusal(*process, 'reward.weights.sub_answer=-1')
    )

  def test_D1_constants_of_another_verifier(self):
    message = self.refusal('reward.norm=affine', 'reward.affine_scale.other=2')
    self.assertIn('reasoning_gym/arithmetic', message)

  def test_E2_truncations_are_scored_for_a_group_estimator(self):
    # The budget is neither visible nor that of the evaluation: T3 would
    # bootstrap, and without a critic there is nothing to bootstrap from.
    settings = {}
    for name in ('gae', 'grpo'):
      world = self.build(f'advantage.estimator={name}', 'group.size=2')
      settings[name] = world.sessions(
          schema.SamplingConfig(), 'build'
      ).keywords['settings']
    self.assertIsInstance(settings['grpo'], session_lib.Settings)
    self.assertTrue(settings['grpo'].scores_truncations)
    self.assertFalse(settings['gae'].scores_truncations)
    self.assertEqual(settings['gae'].rescore_share, 0.01)

  def test_E5_E6_the_arithmetic_environment_serves_both(self):
    self.build('advantage.estimator=gigpo', 'group.size=2')
    self.build(
        'advantage.estimator=process',
        'group.size=2',
        'reward.weights.sub_answer=0.5',
    )


if __name__ == '__main__':
  absltest.main()
