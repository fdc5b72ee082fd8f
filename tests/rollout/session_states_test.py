"""E6, E11, D8: what a session records for groups and of its verifier."""

import functools
import hashlib
import json
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.environments import protocol
from rl_tpu.metrics import noise
from rl_tpu.records import records
from rl_tpu.rollout import asks
from rl_tpu.rollout import desk as desk_lib
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.verifiers import protocol as verifiers
from tests.rollout import worlds


def _spec(*capabilities):
  return protocol.EnvironmentSpec(
      name='counting', version='1', capabilities=frozenset(capabilities)
  )


class _Rooms(worlds.Counting):
  """Says which room it acts in."""

  def tenant_id(self):
    return f'room {self._payload["turns"]}'


class _Scores:
  """A verifier that hands out given scores, one per call."""

  def __init__(self, *scores):
    self._scores = list(scores)
    self.evidence = []

  def __call__(self, evidence):
    self.evidence.append(dict(evidence))
    return _Answer(self._scores.pop(0))


class _Answer:

  def __init__(self, score):
    self._score = score

  def done(self):
    return True

  def result(self):
    if isinstance(self._score, Exception):
      raise self._score
    return verifiers.Score(self._score, self._score > 0.5, {'half': 0.5})


class SessionStatesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.mkdtemp()
    arithmetic_tokenizer.build(folder)
    self.tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
    self.template = chat.ChatTemplate.from_folder(folder)

  def run_one(
      self, spec, *, turns=3, world=worlds.Counting, verify=None, share=0.0
  ) -> records.Rollout:
    settings = worlds.settings(rescore_share=share)
    runner = runner_lib.Runner(
        worlds.ScriptedSampler(self.tokenizer, worlds.line),
        desk_lib.InlinePool(world).acquire,
        verify or _Scores(1.0),
        functools.partial(
            session_lib.Session,
            spec=spec,
            template=self.template,
            tokenizer=self.tokenizer,
            settings=settings,
        ),
    )
    made = records.Task('t', 's', 'f', 0, {'turns': turns})
    (rollout,) = runner.collect([session_lib.Job('r0', made, seed=0)])
    return rollout

  def test_E6_the_state_of_every_turn_before_it_acts(self):
    rollout = self.run_one(_spec(protocol.STATE_ID))
    self.assertEqual(rollout.state_ids, {0: '0', 1: '1', 2: '2'})
    self.assertEqual(rollout.env_snapshot, 'counting/1@0')

  def test_the_record_names_what_the_verifier_read_and_said(self):
    scores = _Scores(1.0, 0.0)
    first = self.run_one(_spec(), verify=scores)
    text = json.dumps(scores.evidence[0], sort_keys=True, separators=(',', ':'))
    wanted = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    self.assertEqual(first.verifier_input_hash, wanted)
    # What is not finite is no figure.
    self.assertEqual(first.score_components, {'half': 0.5})
    # The same task with other evidence is another input.
    other = self.run_one(_spec(), turns=2, verify=scores)
    self.assertNotEqual(scores.evidence[0], scores.evidence[1])
    self.assertNotEqual(other.verifier_input_hash, wanted)

  def test_where_nothing_was_scored_no_input_is_named(self):
    failed = self.run_one(
        _spec(), verify=_Scores(verifiers.VerifierFault('broken'))
    )
    self.assertEqual(failed.termination.value, 'infra_failure')
    self.assertEqual(failed.verifier_input_hash, '')
    self.assertEqual(failed.score_components, {})

  def test_E6_without_the_capability_no_state_is_made_up(self):
    self.assertEqual(self.run_one(_spec()).state_ids, {})

  def test_E6_a_summary_is_taken_in_a_state_of_its_own(self):
    rollout = self.run_one(_spec(protocol.STATE_ID), turns=12)
    self.assertGreater(rollout.num_segments, 1)
    summaries = {
        int(turn)
        for s in rollout.segments
        for turn in s.turn_id[s.role == records.SUMMARY]
    }
    self.assertNotEmpty(summaries)
    for turn, state in rollout.state_ids.items():
      self.assertEqual(state.startswith('summary/'), turn in summaries)
    # The turn after a summary acts in the place that the summary was about.
    for turn in summaries:
      self.assertEqual(
          rollout.state_ids[turn], 'summary/' + rollout.state_ids[turn + 1]
      )

  def test_E11_the_tenant_is_recorded_where_there_is_one(self):
    self.assertIsNone(self.run_one(_spec()).tenant_id)
    rollout = self.run_one(_spec(protocol.TENANT), world=_Rooms, turns=2)
    self.assertEqual(rollout.tenant_id, 'room 2')

  @parameterized.parameters(
      # second score, (rescored, disagreed, squared gap)
      (1.0, (1.0, 0.0, 0.0)),
      (0.75, (1.0, 1.0, 0.0625)),
  )
  def test_D8_a_second_score_of_the_same_input(self, second, expected):
    verify = _Scores(1.0, second)
    rollout = self.run_one(_spec(), verify=verify, share=1.0)
    # The first one counts, whatever the second says.
    self.assertEqual(rollout.terminal_reward, 1.0)
    self.assertEqual(verify.evidence, [verify.evidence[0]] * 2)
    self.assertEqual(
        tuple(
            rollout.counters[f'verifier_{name}']
            for name in ('rescored', 'disagreed', 'squared_gap')
        ),
        expected,
    )
    found = noise.VerifierNoise()
    found.record([rollout])
    self.assertEqual(found.disagreement(), expected[1])

  def test_D8_a_failed_second_score_costs_nothing(self):
    verify = _Scores(1.0, RuntimeError('gone'))
    rollout = self.run_one(_spec(), verify=verify, share=1.0)
    self.assertEqual(rollout.terminal_reward, 1.0)
    self.assertIsNone(rollout.fault_cause)
    self.assertEqual(rollout.counters['verifier_rescore_faults'], 1.0)

  def test_D8_share_0_scores_once(self):
    verify = _Scores(1.0)
    rollout = self.run_one(_spec(), verify=verify, share=0.0)
    self.assertLen(verify.evidence, 1)
    self.assertNotIn('verifier_rescored', rollout.counters)

  def test_D8_the_share_is_one_of_the_rollouts(self):
    chosen = sum(asks.share_of(f'{i:07d}-0') < 0.1 for i in range(4000))
    # Binomial(4000, 0.1): deviation 19.
    self.assertBetween(chosen, 320, 480)


if __name__ == '__main__':
  absltest.main()
