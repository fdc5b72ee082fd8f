"""Sessions of several processes: the same decisions from divided answers."""

import collections
import functools
import hashlib
import tempfile
import time

from absl.testing import absltest
import numpy as np

from rl_tpu.config import schema
from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.records import records
from rl_tpu.rollout import desk
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.sharding import hosts
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import budget
from rl_tpu.types import stops
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers
from tests import processes
from tests.rollout import worlds


class _Verdict:
  """A future that is asked `polls` times before it is done."""

  def __init__(self, evidence, polls):
    self._value = evidence['turns'] / 10
    self._polls = polls

  def done(self):
    self._polls -= 1
    return self._polls < 0

  def result(self):
    return verifiers.Score(value=self._value, solved=True, components={})


def _line(text, request):
  """A reply that depends on the seed, of one to three words."""
  del text
  digest = hashlib.blake2b(str(request.params.seed).encode()).digest()
  return ' 1' * (1 + digest[0] % 3) + '\n'


class RunnerTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.mkdtemp()
    arithmetic_tokenizer.build(folder)
    self.tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
    self.template = chat.ChatTemplate.from_folder(folder)

  def _collect(
      self, here, payloads, *, places=2, polls=0, wall_s=None, **exchange
  ):
    """Rollouts, and which environments were asked at this process."""
    settings = worlds.settings(
        budgets=budget.Budget(window=90, wall_s=wall_s),
        compaction=schema.CompactionConfig(mode='off'),
        reward_weights={},
    )
    asked = collections.Counter()
    taken = []

    class Place(desk.InlineEnvironment):

      def call(self, method, args):
        if method == 'reset':
          asked[args[0].task_id] += 1
        return super().call(method, args)

      def release(self):
        taken.remove(self)
        super().release()

    def acquire():
      if len(taken) == places:
        return None
      taken.append(Place(worlds.Counting))
      return taken[-1]

    sampler = worlds.ScriptedSampler(self.tokenizer, _line)
    link = runner_lib.Exchange(here, **exchange)
    runner = runner_lib.Runner(
        sampler,
        acquire,
        lambda evidence: _Verdict(evidence, polls),
        functools.partial(
            session_lib.Session,
            spec=worlds.Counting.spec,
            template=self.template,
            tokenizer=self.tokenizer,
            settings=settings,
            clock=link.now,
        ),
        exchange=link,
    )
    jobs = [
        session_lib.Job(
            f'r{i}', records.Task(f't{i}', 's', 'f', 0, payload), seed=i
        )
        for i, payload in enumerate(payloads)
    ]
    rollouts = runner.collect(jobs)
    self.assertEmpty(taken)
    return rollouts, asked, sampler.prompts

  def test_all_processes_collect_what_one_collects(self):
    payloads = [{'turns': 1 + i % 4} for i in range(9)]
    alone, asked, _ = self._collect(hosts.ALONE, payloads)
    self.assertEqual(asked, {f't{i}': 1 for i in range(9)})
    # The others' verifiers are slower: it must not show.
    found = processes.together(
        3, lambda here: self._collect(here, payloads, polls=3 * here.index)
    )
    whole = collections.Counter()
    for index, (rollouts, asked, prompts) in enumerate(found):
      self.assertEqual(
          set(asked), {f't{i}' for i in range(index, 9, 3)}
      )
      whole.update(asked)
      # Every process sampled everything, in the same order.
      self.assertEqual(prompts, found[0][2])
      for got, want in zip(rollouts, alone, strict=True):
        self.assertEqual(got.rollout_id, want.rollout_id)
        self.assertEqual(got.termination, want.termination)
        self.assertEqual(got.terminal_reward, want.terminal_reward)
        for a, b in zip(got.segments, want.segments, strict=True):
          np.testing.assert_array_equal(a.token, b.token)
          np.testing.assert_array_equal(a.reward, b.reward)
    self.assertEqual(whole, {f't{i}': 1 for i in range(9)})
    # Times are of one clock: the records are alike to the last field.
    times = [[(r.t_start, r.t_end) for r in found[i][0]] for i in range(3)]
    self.assertEqual(times[0], times[1])
    self.assertEqual(times[0], times[2])

  def test_a_fault_reaches_every_process_with_its_cause(self):
    payloads = [{'turns': 3}, {'turns': 3, 'fault': 'raise'}]
    found = processes.together(
        2, lambda here: self._collect(here, payloads)
    )
    for rollouts, _, _ in found:
      self.assertEqual(rollouts[0].termination, term.Termination.POLICY_STOP)
      self.assertEqual(rollouts[1].termination, term.Termination.INFRA_FAILURE)
      self.assertEqual(rollouts[1].fault_cause, term.FaultCause.ENVIRONMENT)
      self.assertIn('broken', rollouts[1].fault_detail)

  def test_the_wall_budget_ends_a_rollout_everywhere_or_nowhere(self):
    def run(here):
      time.sleep(0.2 * here.index)
      return self._collect(here, [{'turns': 4}] * 4, wall_s=1e-6)

    found = processes.together(2, run)
    kinds = [[r.termination for r in rollouts] for rollouts, _, _ in found]
    self.assertEqual(kinds[0], kinds[1])
    self.assertEqual(kinds[0][0], term.Termination.BUDGET_TRUNCATION)

  def test_a_stop_at_one_process_ends_all(self):
    asked = []

    def run(here):
      stop = lambda: here.index == 1 and len(asked) > 5
      with self.assertRaises(stops.Interrupted):
        self._collect(
            here,
            [{'turns': 4}] * 6,
            digest=lambda: asked.append(1) or b'',
            check_every=1,
            stop=stop,
        )
      return 'ended'

    self.assertEqual(processes.together(2, run), ['ended'] * 2)

  def test_states_that_part_are_named_with_the_first_exchange(self):
    def run(here):
      calls = []

      def digest():
        calls.append(1)
        return b'other' if here.index and len(calls) == 3 else b'same'

      with self.assertRaisesRegex(
          RuntimeError, 'at exchange 4 .*process 1 against process 0'
      ):
        self._collect(
            here, [{'turns': 4}] * 4, digest=digest, check_every=2
        )
      return 'noticed'

    self.assertEqual(processes.together(2, run), ['noticed'] * 2)


if __name__ == '__main__':
  absltest.main()
