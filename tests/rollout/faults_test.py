"""What fails ends its own rollout, with its cause; never a score of 0 (A5)."""

import collections
import dataclasses
import functools
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.config import schema
from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.environments import protocol
from rl_tpu.records import records
from rl_tpu.rollout import desk as desk_lib
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers
from tests.rollout import worlds


class _Odd(worlds.Counting):
  """Answers its second step with what the payload names as odd."""

  answers = {
      'none': None,
      'nan': protocol.Step(
          rewards={'line': float('nan')},
          end=protocol.End(term.Termination.POLICY_STOP),
      ),
      'no message': protocol.Step(protocol.Observation(prompt=('go',))),
      'refused': protocol.Step(
          protocol.Observation(prompt=(protocol.Message('refused', 'go'),))
      ),
      'said so': protocol.Step(
          end=protocol.End(term.Termination.INFRA_FAILURE)
      ),
      'flood': protocol.Step(
          protocol.Observation((protocol.Message('tool', 'ok ' * 200),))
      ),
  }
  raised = {
      'unplugged': BrokenPipeError('the socket is gone'),
      'full': MemoryError(),
      'slow': TimeoutError(),
  }

  def step(self, action):
    odd = self._payload.get('odd')
    if self._turn == 1 and odd in self.raised:
      raise self.raised[odd]
    if self._turn == 1 and odd in self.answers:
      return self.answers[odd]
    return super().step(action)

  def evidence(self):
    if self._payload.get('odd') == 'evidence':
      return {'turns': object()}
    return super().evidence()

  def close(self):
    if self._payload.get('odd') == 'close':
      raise RuntimeError('it is gone already')


class _Sampler(worlds.ScriptedSampler):
  """Fails as `fault` names it; a request of a rollout named r1 alone."""

  fault = ''

  def submit(self, request):
    if self.fault == 'refuses' and request.request_id.startswith('r1:1'):
      raise ValueError('a prompt that is too long')
    super().submit(request)

  def step(self):
    if self.fault == 'raises':
      raise RuntimeError('the device is gone')
    if self.fault == 'loses':
      self._queue.clear()
    done = super().step()
    if self.fault == 'invents' and done:
      done[0] = dataclasses.replace(done[0], request_id='nobody')
    if self.fault == 'nan':
      done = [_no_number(d) for d in done]
    return done


def _no_number(completion):
  if not completion.request_id.startswith('r1:1'):
    return completion
  logprob = completion.logprob.copy()
  logprob[-1] = np.nan
  return dataclasses.replace(completion, logprob=logprob)


class FaultsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.mkdtemp()
    arithmetic_tokenizer.build(folder)
    self.tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
    text = chat.ChatTemplate.from_folder(folder).text
    self.template = chat.ChatTemplate(
        '{% if messages[-1].role == "refused" %}{{ nothing.at.all }}{% endif %}'
        + text
    )

  def collect(
      self, payloads, *, acquire=None, verify=None, fault='', retries=0
  ):
    settings = worlds.settings(
        compaction=schema.CompactionConfig(max_summary_tokens=8)
    )
    sampler = _Sampler(self.tokenizer, worlds.line)
    sampler.fault = fault
    runner = runner_lib.Runner(
        sampler,
        acquire or desk_lib.InlinePool(_Odd).acquire,
        verify or (lambda _: worlds.Done(verifiers.Score(1.0, True))),
        functools.partial(
            session_lib.Session,
            spec=_Odd.spec,
            template=self.template,
            tokenizer=self.tokenizer,
            settings=settings,
        ),
        start_retries=retries,
    )
    return runner.collect([
        session_lib.Job(
            f'r{i}', records.Task(f't{i}', 's', 'f', 0, payload), seed=i
        )
        for i, payload in enumerate(payloads)
    ])

  def check_alone(self, rollouts, cause, detail):
    """The second of three has failed, and the others have not."""
    kinds = [r.termination.value for r in rollouts]
    self.assertEqual(kinds, ['policy_stop', 'infra_failure', 'policy_stop'])
    failed = rollouts[1]
    self.assertEqual(failed.fault_cause, cause)
    self.assertRegex(failed.fault_detail, detail)
    self.assertIsNone(failed.terminal_reward)
    self.assertIsNone(failed.solved)

  @parameterized.parameters(
      ('none', term.FaultCause.ENVIRONMENT, 'step is a NoneType, no Step'),
      ('nan', term.FaultCause.ENVIRONMENT, 'line = nan'),
      ('no message', term.FaultCause.ENVIRONMENT, 'no Message'),
      ('refused', term.FaultCause.ENVIRONMENT, 'the chat template failed'),
      ('said so', term.FaultCause.ENVIRONMENT, 'it said so'),
      ('unplugged', term.FaultCause.NETWORK, 'the socket is gone'),
      ('full', term.FaultCause.MEMORY, 'MemoryError'),
      ('slow', term.FaultCause.TIMEOUT, 'TimeoutError'),
      ('evidence', term.FaultCause.ENVIRONMENT, 'evidence is no JSON'),
  )
  def test_A5_T14_K35_one_environment_fails(self, odd, cause, detail):
    rollouts = self.collect(
        [{'turns': 3}, {'turns': 3, 'odd': odd}, {'turns': 3}]
    )
    self.check_alone(rollouts, cause, detail)

  @parameterized.parameters(None, 0.0, verifiers.Score(float('nan'), False))
  def test_A5_K35_a_verifier_that_says_what_is_no_score(self, answer):
    good = verifiers.Score(1.0, True)
    rollouts = self.collect(
        [{'turns': 3}, {'turns': 2}, {'turns': 3}],
        verify=lambda e: worlds.Done(answer if e['turns'] == 2 else good),
    )
    self.check_alone(rollouts, term.FaultCause.VERIFIER, 'score|no number')

  def test_A5_a_verifier_that_cannot_be_asked(self):

    def verify(evidence):
      if evidence['turns'] == 2:
        raise ConnectionRefusedError('nobody there')
      return worlds.Done(verifiers.Score(1.0, True))

    rollouts = self.collect(
        [{'turns': 3}, {'turns': 2}, {'turns': 3}], verify=verify
    )
    self.check_alone(rollouts, term.FaultCause.NETWORK, 'nobody there')

  def test_a_flood_of_text_ends_with_the_window(self):
    rollouts = self.collect([{'turns': 3}, {'turns': 3, 'odd': 'flood'}])
    kinds = [r.termination.value for r in rollouts]
    self.assertEqual(kinds, ['policy_stop', 'context_truncation'])

  def test_a_close_that_raises_is_counted_and_costs_nothing(self):
    pool = desk_lib.InlinePool(_Odd)
    rollouts = self.collect(
        [{'turns': 2, 'odd': 'close'}, {'turns': 2}], acquire=pool.acquire
    )
    self.assertEqual([r.terminal_reward for r in rollouts], [1.0, 1.0])
    self.assertEqual(pool.close_faults, 1)

  @parameterized.parameters(0, 1, 2)
  def test_A5_only_a_start_is_tried_again_and_that_is_counted(self, retries):
    built = collections.Counter()

    class Sluggish(_Odd):
      """Its first two environments do not come up."""

      def __init__(self):
        super().__init__()
        built['all'] += 1
        self._number = built['all']

      def reset(self, task, seed):
        if self._number <= 2:
          raise ConnectionRefusedError('not up yet')
        return super().reset(task, seed)

    (rollout,) = self.collect(
        [{'turns': 2}],
        acquire=desk_lib.InlinePool(Sluggish).acquire,
        retries=retries,
    )
    self.assertEqual(built['all'], retries + 1)
    self.assertEqual(rollout.counters.get('start_retries', 0), retries)
    if retries < 2:
      self.assertEqual(rollout.termination, term.Termination.INFRA_FAILURE)
      self.assertEqual(rollout.fault_cause, term.FaultCause.NETWORK)
    else:
      self.assertEqual(rollout.terminal_reward, 1.0)

  def test_A5_a_step_is_not_tried_again(self):
    pool = desk_lib.InlinePool(_Odd)
    (rollout,) = self.collect(
        [{'turns': 3, 'odd': 'unplugged'}], acquire=pool.acquire, retries=5
    )
    self.assertEqual(rollout.termination, term.Termination.INFRA_FAILURE)
    self.assertNotIn('start_retries', rollout.counters)

  def test_A5_an_environment_that_cannot_be_built(self):
    def make():
      raise MemoryError('no room for another machine')

    (rollout,) = self.collect(
        [{'turns': 2}], acquire=desk_lib.InlinePool(make).acquire
    )
    self.assertEqual(rollout.fault_cause, term.FaultCause.MEMORY)
    self.assertEqual(rollout.num_actions, 0)

  @parameterized.parameters(
      ('nan', 'log-probabilities of turn 1 are not finite'),
      ('refuses', 'a prompt that is too long'),
  )
  def test_A5_R5_the_sampler_fails_one_rollout(self, fault, detail):
    rollouts = self.collect([{'turns': 3}] * 3, fault=fault)
    self.check_alone(rollouts, term.FaultCause.SAMPLER, detail)
    for segment in rollouts[1].segments:
      self.assertTrue(np.isfinite(segment.behaviour_logprob).all())

  @parameterized.parameters(
      ('raises', 'RuntimeError: the device is gone'),
      ('loses', 'idle and owes'),
      ('invents', 'answered nobody'),
  )
  def test_O6_a_sampler_that_is_dead_is_noticed(self, fault, message):
    with self.assertRaisesRegex(runner_lib.SamplerFault, message):
      self.collect([{'turns': 3}] * 3, fault=fault)


if __name__ == '__main__':
  absltest.main()
