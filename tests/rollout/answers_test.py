"""What is no answer of an environment or a verifier (T14, K35)."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.environments import protocol
from rl_tpu.rollout import answers
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers

_MESSAGE = protocol.Message('user', 'go')
_END = protocol.End(term.Termination.POLICY_STOP)


def step(**fields):
  return protocol.Step(**({'end': _END} | fields))


class AnswersTest(parameterized.TestCase):

  @parameterized.parameters(
      ('reset', protocol.Observation(prompt=(_MESSAGE,))),
      ('reset', protocol.Observation()),
      ('instruction', (_MESSAGE,)),
      ('instruction', [_MESSAGE]),
      ('instruction', ()),
      ('step', step(rewards={'a': np.float32(0.5), 'b': 1, 'c': True})),
      ('step', step(end=None, observation=protocol.Observation((_MESSAGE,)))),
      ('step', step(counters={'tool_calls': 2})),
      ('summarise', 'said'),
      ('evidence', {'reported': ['3', None]}),
      ('state_id', 'x'),
      ('tenant_id', None),
      ('tenant_id', 'room'),
      ('remember', None),
      ('remember', 'anything'),
  )
  def test_what_the_protocol_names_is_taken(self, method, answer):
    answers.check(method, answer)

  @parameterized.parameters(
      ('reset', None, 'reset is a NoneType, no Observation'),
      ('reset', 'text', 'no Observation'),
      ('reset', protocol.Observation(prompt='go'), 'reset.prompt is a str'),
      ('reset', protocol.Observation(('go',)), 'entry of reset.messages'),
      ('instruction', None, 'no tuple or list'),
      ('instruction', (protocol.Message('user', None),), 'a NoneType, no str'),
      ('instruction', (protocol.Message('user', b'go'),), 'is a bytes, no str'),
      ('instruction', (protocol.Message(3, 'go'),), 'a role of instruction'),
      ('instruction', (protocol.Message('user', '\ud83d'),), 'is no text'),
      ('step', None, 'step is a NoneType, no Step'),
      ('step', (None, {}, True), 'step is a tuple, no Step'),
      ('step', step(rewards=None), 'step.rewards is a NoneType'),
      ('step', step(rewards=0.5), 'step.rewards is a float'),
      ('step', step(rewards={'a': float('nan')}), 'nan, which is no number'),
      ('step', step(rewards={'a': -float('inf')}), 'a = -inf'),
      ('step', step(rewards={'a': None}), 'a = None'),
      ('step', step(rewards={'a': '1'}), "a = '1'"),
      ('step', step(rewards={3: 1.0}), 'a name of step.rewards is a int'),
      ('step', step(counters={'n': float('nan')}), 'step.counters: n = nan'),
      ('step', step(end='policy_stop'), 'step.end is a str, no End'),
      ('step', step(end=protocol.End('policy_stop')), 'end.kind is a str'),
      ('step', step(end=None), 'neither an observation nor an end'),
      ('step', step(observation='ok'), 'step.observation is a str'),
      ('summarise', None, 'summarise is a NoneType, no str'),
      ('evidence', None, 'evidence is a NoneType, no dict'),
      ('evidence', {'x': object()}, 'evidence is no JSON'),
      ('evidence', {'x': float('nan')}, 'evidence is no JSON'),
      ('state_id', 7, 'state_id is a int, no str'),
      ('tenant_id', 7, 'tenant_id is a int, no str'),
  )
  def test_K35_what_is_none_is_named(self, method, answer, message):
    with self.assertRaisesRegex(answers.Garbage, message):
      answers.check(method, answer)

  def test_K35_scores(self):
    answers.check_score(verifiers.Score(0.5, True))
    for score, message in (
        (None, 'score is a NoneType, no Score'),
        (1.0, 'score is a float, no Score'),
        (verifiers.Score(float('nan'), True), 'value = nan'),
        (verifiers.Score(None, True), 'value = None'),
    ):
      with self.assertRaisesRegex(answers.Garbage, message):
        answers.check_score(score)


if __name__ == '__main__':
  absltest.main()
