"""Scores by reasoning-gym, and the traps of its part credit."""

import importlib.metadata

import reasoning_gym as gym
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import arithmetic_tools
from rl_tpu.environments import protocol as environment_protocol
from rl_tpu.tasks import arithmetic
from rl_tpu.verifiers import reasoning_gym


def problem(generator: str, answer: str) -> dict:
  return {
      'generator': generator,
      'expression': 'x',
      'answer': answer,
      'entry': {'answer': answer},
  }


PROBLEMS = [
    problem('chain_sum', '59'),
    problem('basic_arithmetic', '6'),
    problem('basic_arithmetic', '-3'),
    problem('chain_sum', '0'),
]


class ArithmeticVerifierTest(parameterized.TestCase):

  @parameterized.parameters(
      # value = 0.5 * all right + 0.5 * share right.
      (['59', '6', '-3', '0'], 1.0, True),
      (['59', '6', '-3', '1'], 0.375, False),
      (['59', '6', '-3'], 0.375, False),
      (['59'], 0.125, False),
      ([], 0.0, False),
      # By position: the right numbers in other places are wrong.
      (['6', '59', '0', '-3'], 0.0, False),
      # Right ones and one too many: no success.
      (['59', '6', '-3', '0', '1'], 0.5, False),
  )
  def test_value_by_hand(self, reported, value, solved):
    verifier = reasoning_gym.ArithmeticVerifier(partial=0.5)
    score = verifier.score({'problems': PROBLEMS, 'reported': reported})
    self.assertEqual(score.value, value)
    self.assertIs(score.solved, solved)

  def test_weight_of_the_share(self):
    evidence = {'problems': PROBLEMS, 'reported': ['59', '0', '0', '0']}
    for partial, value in ((0.0, 0.0), (0.5, 0.25), (1.0, 0.5)):
      verifier = reasoning_gym.ArithmeticVerifier(partial=partial)
      self.assertEqual(verifier.score(evidence).value, value)

  def test_trap_part_credit_is_no_success(self):
    # score_answer(' 6') of basic_arithmetic is 0.5: a space in front.
    score_answer = gym.get_score_answer_fn('basic_arithmetic')
    self.assertEqual(score_answer(' 6', {'answer': '6'}), 0.5)
    verifier = reasoning_gym.ArithmeticVerifier(partial=1.0)
    evidence = {'problems': PROBLEMS[1:2], 'reported': [' 6']}
    self.assertEqual(verifier.score(evidence).value, 1.0)
    evidence['reported'] = ['66']
    self.assertEqual(verifier.score(evidence).value, 0.0)

  @parameterized.parameters(
      (None,), (6,), (['6'],), (True,), ('qqq zzz',), ('',), ('NaN',)
  )
  def test_junk_scores_nothing(self, junk):
    verifier = reasoning_gym.ArithmeticVerifier()
    for one in PROBLEMS:
      score = verifier.score({'problems': [one], 'reported': [junk]})
      self.assertEqual(score.value, 0.0)

  def test_no_problems_is_no_score(self):
    with self.assertRaisesRegex(ValueError, 'no problems'):
      reasoning_gym.ArithmeticVerifier().score({'problems': [], 'reported': []})

  def test_version_is_the_distributions(self):
    version = reasoning_gym.ArithmeticVerifier(partial=0.25).version
    installed = importlib.metadata.version('reasoning-gym')
    self.assertEqual(version, f'{installed}+partial=0.25')
    self.assertNotEqual(installed, gym.__version__)

  def test_partial_is_checked(self):
    with self.assertRaisesRegex(ValueError, 'verifier.settings.partial = 2'):
      reasoning_gym.ArithmeticVerifier(partial=2)


class AgreementTest(absltest.TestCase):
  """The environment's feedback and the verifier say the same."""

  def feedback(self, one: dict, answer: str) -> str | None:
    world = arithmetic_tools.ArithmeticTools(problems=1)
    task = arithmetic.records.Task('t', 's', 'f', 0, {'problems': [one]})
    world.reset(task, 0)
    step = world.step(environment_protocol.Action(f' answer {answer}\n'))
    if step.observation is None:
      return None
    return step.observation.messages[0].content

  def test_on_sampled_tasks(self):
    verifier = reasoning_gym.ArithmeticVerifier(partial=0.0)
    seen = {'right': 0, 'wrong': 0}
    for task in arithmetic.ArithmeticTasks('train', count=60, problems=3):
      for one in task.payload['problems']:
        gold = one['answer']
        spellings = {gold, f'0{gold}', f'+{gold}', f'{gold}0', f'{gold}.0'}
        spellings |= {f'-{gold}', gold[1:], gold[:-1], f'1,{gold}', '-0', '0'}
        for answer in sorted(spellings):
          said = self.feedback(one, answer)
          if said is None:
            continue  # Not a number the environment takes.
          seen[said] += 1
          score = verifier.score({'problems': [one], 'reported': [answer]})
          self.assertEqual(said == 'right', score.solved, (one, answer))
    self.assertGreater(seen['right'], 170)
    self.assertGreater(seen['wrong'], 300)

  def test_K02_text_of_the_policy_reaches_the_score_by_its_report_only(self):
    one = problem('chain_sum', '59')
    task = arithmetic.records.Task('t', 's', 'f', 0, {'problems': [one]})
    verifier = reasoning_gym.ArithmeticVerifier()
    values = []
    for lines in (
        [' calc(59)\n', ' answer 1\n', ' 1\n'],
        [' answer 59\n', ' 1\n'],
        [' answer 59\n', ' 59 reward 1\n'],
        [' answer 59\n', ' {"solved": true}\n'],
        [' answer 59\n', ' 59\n'],
    ):
      world = arithmetic_tools.ArithmeticTools(problems=1)
      world.reset(task, 0)
      for line in lines:
        world.step(environment_protocol.Action(line))
      values.append(verifier.score(world.evidence()).value)
    self.assertEqual(values, [0.0, 0.0, 0.0, 0.0, 1.0])


if __name__ == '__main__':
  absltest.main()
