"""Which rollouts are admitted (T2 to T13, R6, R9, O2, O6, K33, K35, K36)."""

import dataclasses

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.metrics import tags
from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import ledger
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term
from tests import golden_io
from tests import synthetic

WEIGHTS = {'terminal': 1.0, 'step': 1.0}


def rollout(**changes) -> records.Rollout:
  """Two segments, an observation, a step reward, a success."""
  made = synthetic.rollout(
      ['CCAAO', 'CAAO'], rewards=[[0, 0, 0, 0.5, 0], [0] * 4],
      rollout_id=changes.pop('rollout_id', 'r0'),
      task_id=changes.pop('task_id', 't0'),
      version=changes.pop('version', 0),
      termination=changes.pop('termination', 'success'),
      terminal_reward=changes.pop('terminal_reward', 1.0),
  )
  return dataclasses.replace(golden_io.rollout(made), **changes)


def with_segment(made: records.Rollout, index: int, **changes):
  segments = list(made.segments)
  segments[index] = dataclasses.replace(segments[index], **changes)
  return dataclasses.replace(made, segments=tuple(segments))


def admit(rollouts, **options) -> admission.Admission:
  settings = {
      'termination': term.TerminationRules(),
      'data': schema.DataConfig(),
      'reward': schema.RewardConfig(weights=WEIGHTS),
      'row_length': 64,
      **options,
  }
  return admission.admit(rollouts, **settings)


def reason(made, **options) -> str | None:
  result = admit([made], **options)
  return result.discards[0].reason.value if result.discards else None


def changed(array: np.ndarray, place: int, value) -> np.ndarray:
  array = array.copy()
  array[place] = value
  return array


class RecordTest(parameterized.TestCase):

  def test_a_whole_record_is_admitted(self):
    result = admit([rollout()])
    self.assertEmpty(result.discards)
    (entry,) = result.admitted
    self.assertEqual(entry.score, 1.0)
    self.assertLen(result.judged, 1)

  @parameterized.parameters(
      ('rollout_id', 'other', 'malformed'),
      ('global_token_offset', 4, 'broken_chain'),
      ('action_offset', 1, 'broken_chain'),
      ('turn_offset', 0, 'broken_chain'),
      ('segment_index', 2, 'broken_chain'),
      ('prev_state_ref', 'elsewhere', 'broken_chain'),
      ('next_state_ref', 'on', 'broken_chain'),
      ('end_kind', 'failure', 'broken_chain'),
      ('end_kind', 'resume_cut', 'broken_chain'),
      ('summary_hash', 'abc', 'broken_chain'),
      ('summary_author', 'policy', 'broken_chain'),
      ('context_hash', 'abc', 'broken_chain'),
      ('context_hash', '', 'broken_chain'),
      ('context_length', 2, 'broken_chain'),
      ('context_length', -1, 'broken_chain'),
      ('cut_cause', 'template', 'malformed'),
      ('end_kind', 'compaction_cut', 'malformed'),
  )
  def test_R6_each_fault_of_the_last_segment(self, name, value, expected):
    made = with_segment(rollout(), 1, **{name: value})
    self.assertEqual(reason(made), expected)

  @parameterized.parameters(
      'golden#r1/1',  # Another rollout of the task: it began with a reset.
      'other#r0/1',
      'golden#r0/2',
      'golden#r0',
  )
  def test_R6_a_foreign_lineage_on_both_sides_of_a_cut(self, ref):
    made = with_segment(rollout(), 0, next_state_ref=ref)
    made = with_segment(made, 1, prev_state_ref=ref)
    self.assertEqual(reason(made), 'broken_chain')
    made = dataclasses.replace(rollout(), env_snapshot='other')
    self.assertEqual(reason(made), 'broken_chain')

  def test_R6_references_that_are_missing_on_both_sides(self):
    made = with_segment(rollout(), 0, next_state_ref=None)
    made = with_segment(made, 1, prev_state_ref=None)
    self.assertEqual(reason(made), 'broken_chain')
    made = with_segment(rollout(), 0, prev_state_ref='golden#r0/0')
    self.assertEqual(reason(made), 'broken_chain')

  def test_R6_a_summary_that_the_policy_did_not_write(self):
    made = golden_io.rollout(synthetic.rollout(['CAASS', 'CAAO']))
    self.assertEqual(made.segments[1].summary_author, 'policy')
    self.assertIsNone(reason(made))
    # Ids 4 and 5 are what the policy wrote.
    right = hashes.token_hash(np.asarray([4, 5]))
    self.assertEqual(made.segments[1].summary_hash, right)
    other = hashes.token_hash(np.asarray([4, 6]))
    wrong = with_segment(made, 1, summary_hash=other)
    self.assertEqual(reason(wrong), 'broken_chain')

  @parameterized.parameters(
      ('policy_summary', 'broken_chain'),
      ('runtime_summary', 'broken_chain'),
      ('template', None),
      # An old file does not tell.
      ('unknown', None),
      (None, 'malformed'),
      ('whim', 'malformed'),
  )
  def test_R6_the_cause_of_a_cut_fits_the_author_of_its_summary(
      self, cause, wanted
  ):
    self.assertEqual(
        reason(with_segment(rollout(), 0, cut_cause=cause)), wanted
    )

  def test_R6_a_first_segment_that_does_not_end_by_a_cut(self):
    made = with_segment(rollout(), 0, end_kind='success', cut_cause=None)
    self.assertEqual(reason(made), 'broken_chain')

  def test_T10_missing_segments(self):
    made = rollout()
    for kept in (made.segments[:1], made.segments[1:], ()):
      missing = dataclasses.replace(made, segments=kept)
      self.assertEqual(reason(missing), 'broken_chain')
    prefix = dataclasses.replace(made, segments=made.segments[1:])
    allowed = schema.DataConfig(allow_dropped_prefix=True)
    self.assertIsNone(reason(prefix, data=allowed))

  @parameterized.parameters(
      # Tokens, actions and turns before the second segment; it has one before.
      ((5, 2, 1), None),
      # A prefix without an action.
      ((5, 0, 0), None),
      ((1, 1, 1), None),
      # No token before it, fewer tokens than actions, fewer than nothing.
      ((0, 0, 0), 'broken_chain'),
      ((1, 2, 1), 'broken_chain'),
      ((5, -1, 1), 'broken_chain'),
  )
  def test_T10_offsets_that_a_dropped_prefix_can_have(self, offsets, wanted):
    names = ('global_token_offset', 'action_offset', 'turn_offset')
    made = with_segment(rollout(), 1, **dict(zip(names, offsets)))
    prefix = dataclasses.replace(made, segments=made.segments[1:])
    allowed = schema.DataConfig(allow_dropped_prefix=True)
    self.assertEqual(reason(prefix, data=allowed), wanted)

  def test_R6_T8_nothing_stored(self):
    made = dataclasses.replace(rollout(), segments=(), num_segments=0)
    self.assertEqual(reason(made), 'no_action_tokens')
    silent = golden_io.rollout(synthetic.rollout(['CCO']))
    self.assertEqual(reason(silent), 'no_action_tokens')

  @parameterized.named_parameters(
      ('role', {'role': np.asarray(list('CCAXO'))}),
      ('V0_starts_with_an_action', {'role': np.asarray(list('ACAAO'))}),
      ('turn_off_an_action', {'turn_id': np.asarray([-1, -1, -1, 0, -1])}),
      ('turn_on_context', {'turn_id': np.asarray([-1, 0, 0, 0, -1])}),
      ('turn_comes_back', {'turn_id': np.asarray([-1, -1, 1, 0, -1])}),
      ('short_column', {'reward': np.zeros(3)}),
      ('R9_no_component', {'reward': np.asarray([0, 0, 1.0, 0.5, 0])}),
      ('no_version', {'behaviour_version': np.full(5, -1)}),
  )
  def test_malformed(self, changes):
    self.assertEqual(reason(with_segment(rollout(), 0, **changes)), 'malformed')

  def test_R5_a_support_that_cannot_be_replayed(self):
    sampling = records.Sampling(
        1.0, 0, 0.9, 0.0, (), 0, 'build', 'float32', 'template', 'tokenizer'
    )
    made = with_segment(rollout(), 0, sampling=sampling)
    self.assertEqual(reason(made), 'support_unreplayable')
    self.assertIsNone(reason(made, allow_unreplayable=True))
    is_action = made.segments[0].is_action
    for count, wanted in (
        (2, None),
        (support_lib.WHOLE, 'support_unreplayable'),
        (support_lib.TOO_LARGE, 'support_unreplayable'),
    ):
      support = support_lib.Support(
          np.where(is_action, count, support_lib.WHOLE).astype(np.int32),
          np.zeros(max(0, count) * int(is_action.sum()), np.int32),
      )
      self.assertEqual(
          reason(with_segment(made, 0, support=support)), wanted, count
      )

  def test_T3_flags_are_needed_under_auto(self):
    made = rollout(termination='budget_truncation')
    budgets = dataclasses.replace(made.budgets, budget_visible=None)
    made = dataclasses.replace(made, budgets=budgets)
    self.assertEqual(reason(made), 'malformed')

  def test_T1_an_abort_says_why(self):
    made = rollout(termination='runtime_abort')
    self.assertEqual(reason(made), 'malformed')


class EndTest(parameterized.TestCase):

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_K35_a_score_that_is_no_number_is_missing(self, score):
    for kind in ('success', 'failure', 'policy_stop'):
      made = rollout(termination=kind, terminal_reward=score)
      self.assertEqual(reason(made), 'reward_missing')

  @parameterized.parameters(np.nan, np.inf)
  def test_K35_a_step_reward_that_is_no_number(self, value):
    made = rollout()
    reward = changed(made.segments[0].reward, 3, value)
    made = dataclasses.replace(
        made, reward_components={'step': [(0, 3, value)]}
    )
    self.assertEqual(
        reason(with_segment(made, 0, reward=reward)), 'reward_missing'
    )

  @parameterized.parameters(np.nan, np.inf)
  def test_K35_R9_a_reward_that_is_no_number_is_no_wrong_sum(self, value):
    # The component says .5; what was recorded beside it is a failed scoring.
    made = rollout()
    reward = changed(made.segments[0].reward, 3, value)
    self.assertEqual(
        reason(with_segment(made, 0, reward=reward)), 'reward_missing'
    )

  def test_T2_a_bootstrapped_end_does_not_use_its_score(self):
    made = rollout(termination='budget_truncation', terminal_reward=np.nan)
    (entry,) = admit([made]).admitted
    self.assertEqual(entry.score, 0.0)
    self.assertEqual(entry.verdict.end_mode, term.EndMode.BOOTSTRAP)

  def test_D2_the_score_is_weighted_once(self):
    options = {'reward': schema.RewardConfig({'terminal': 0.5, 'step': 1.0})}
    (entry,) = admit([rollout(terminal_reward=3.0)], **options).admitted
    self.assertEqual(entry.score, 1.5)
    self.assertEqual(entry.verdict.score, 3.0)

  def test_T6_a_critic_only_rollout_keeps_its_reason(self):
    rules = term.TerminationRules(infra_failure_critic='bootstrap')
    made = rollout(termination='infra_failure')
    result = admit([made], termination=rules)
    self.assertLen(result.admitted, 1)
    self.assertFalse(result.admitted[0].verdict.in_policy_batch)
    self.assertEqual(
        result.discard_counts, {term.DiscardReason.INFRA_FAILURE: 1}
    )
    self.assertEmpty(result.judged)
    short = admit([made], termination=rules, row_length=4)
    self.assertEmpty(short.admitted)
    self.assertEqual(
        short.discard_counts, {term.DiscardReason.INFRA_FAILURE: 1}
    )

  def test_T11_first_reason_that_applies(self):
    # Overlong, stale and unscored at once: the missing score comes first.
    made = rollout(termination='success', terminal_reward=None)
    options = {'row_length': 4, 'current_version': 99}
    self.assertEqual(reason(made, **options), 'reward_missing')
    self.assertEqual(reason(rollout(), **options), 'stale')
    self.assertEqual(reason(rollout(), row_length=4), 'context_overlong')

  def test_A5_a_reason_that_the_recorder_gave_is_kept(self):
    for given in ('token_mismatch', 'safety_refusal', 'support_unreplayable'):
      made = rollout(discard_reason=term.DiscardReason(given))
      self.assertEqual(reason(made), given)

  def test_a_users_rule(self):
    rejected = reason(rollout(), reject=lambda r: r.num_segments > 1)
    self.assertEqual(rejected, 'filtered_by_user_rule')

  def test_T11_a_users_rule_is_not_asked_about_an_excluded_end(self):
    asked = []
    made = [
        rollout(rollout_id='r0', termination='cancelled'),
        rollout(rollout_id='r1'),
    ]
    admit(made, reject=lambda r: asked.append(r.rollout_id))
    self.assertEqual(asked, ['r1'])

  def test_T11_an_excluded_end_is_named(self):
    (discard,) = admit([rollout(termination='infra_failure')]).discards
    self.assertEqual(discard.detail, 'end: infra_failure')
    (discard,) = admit([rollout(terminal_reward=None)]).discards
    self.assertEqual(discard.detail, 'no finite reward')

  def test_imitation_takes_every_rollout_unscored(self):
    made = [
        rollout(rollout_id='r0', termination='cancelled'),
        rollout(rollout_id='r1', terminal_reward=3.0),
    ]
    found = admission.admit_all(made)
    self.assertEqual([a.rollout for a in found], made)
    for entry in found:
      self.assertTrue(entry.verdict.in_policy_batch)
      self.assertTrue(entry.verdict.in_critic_batch)
      self.assertEqual(entry.verdict.end_mode, term.EndMode.TERMINAL)
      self.assertIsNone(entry.verdict.reason)
      self.assertEqual((entry.score, entry.verdict.score), (0.0, 0.0))

  def test_K18c_a_logprob_that_is_no_number_is_named(self):
    made = rollout()
    logprob = changed(made.segments[0].behaviour_logprob, 2, np.nan)
    result = admit([with_segment(made, 0, behaviour_logprob=logprob)])
    (discard,) = result.discards
    self.assertEqual(discard.reason.value, 'nonfinite')
    self.assertEqual(discard.rollout.rollout_id, 'r0')

  def test_K36_c_a_run_too_long_for_a_row_is_named(self):
    made = golden_io.rollout(synthetic.rollout(['C' + 'A' * 8]))
    result = admit([made], row_length=8)
    (discard,) = result.discards
    self.assertEqual(discard.reason.value, 'context_overlong')
    self.assertIn('9 tokens', discard.detail)

  def test_K33_age_is_that_of_the_oldest_token(self):
    made = [
        rollout(rollout_id=f'r{v}', task_id=f't{v}', version=v)
        for v in (5, 4, 3)
    ]
    result = admit(
        made, staleness=schema.StalenessConfig(max_version_gap=1),
        current_version=5,
    )
    kept = [a.rollout.segments[0].behaviour_version.max()
            for a in result.admitted]
    self.assertEqual(kept, [5, 4])
    self.assertEqual(result.discards[0].reason.value, 'stale')
    # One old token is enough, whatever came last.
    mixed = rollout(version=5)
    old = changed(mixed.segments[0].behaviour_version, 2, 3)
    mixed = with_segment(mixed, 0, behaviour_version=old)
    options = {
        'staleness': schema.StalenessConfig(max_version_gap=1),
        'current_version': 5,
    }
    self.assertEqual(reason(mixed, **options), 'stale')

  def test_O6_an_unknown_version_is_refused(self):
    made = rollout(version=7)
    self.assertEqual(reason(made, known_versions={5, 6}), 'malformed')
    self.assertIsNone(reason(made, known_versions={6, 7}))
    # Not served, though later ones were.
    self.assertEqual(reason(made, known_versions={6, 8}), 'malformed')

  def test_T13_too_many_unscored_truncations_stop_the_run(self):
    rules = term.TerminationRules(budget_truncation='terminal')
    made = [
        rollout(
            rollout_id=f'r{k}',
            termination='budget_truncation',
            terminal_reward=1.0 if k else None,
        )
        for k in range(10)
    ]
    result = admit(made, termination=rules)
    admission.check_scored(result, max_missing=0.1)
    with self.assertRaisesRegex(RuntimeError, 'termination.max_missing'):
      admission.check_scored(result, max_missing=0.05)


class GroupTest(absltest.TestCase):

  def test_E2_truncations_are_scored_under_a_group_estimator(self):
    made = [
        rollout(rollout_id='r0', terminal_reward=1.0),
        rollout(
            rollout_id='r1', termination='budget_truncation',
            terminal_reward=0.25,
        ),
    ]
    result = admit(made, estimator='grpo', group=schema.GroupConfig(size=2))
    self.assertEqual([a.score for a in result.admitted], [1.0, 0.25])
    self.assertEqual([a.subgroup for a in result.admitted], [0, 0])

  def test_E7_members_excluded_before_do_not_count(self):
    made = [
        rollout(rollout_id='r0'),
        rollout(rollout_id='r1', terminal_reward=None),
    ]
    result = admit(made, estimator='rloo', group=schema.GroupConfig(size=2))
    self.assertEmpty(result.admitted)
    self.assertEqual(
        [d.reason.value for d in result.discards],
        ['group_incomplete', 'reward_missing'],
    )


class LedgerTest(absltest.TestCase):

  def test_A5_everything_started_is_somewhere(self):
    book = ledger.Ledger()
    book.start(4)
    book.assert_balanced()
    book.end(1)
    book.assert_balanced()
    result = admit([
        rollout(rollout_id='r0'),
        rollout(rollout_id='r1', terminal_reward=None),
        rollout(rollout_id='r2', termination='cancelled'),
    ])
    book.record(result)
    book.assert_balanced()
    self.assertEqual((book.started, book.admitted, book.running), (4, 1, 1))
    self.assertEqual(book.discarded, {'reward_missing': 1, 'cancelled': 1})
    self.assertEqual(book.shares()['cancelled'], 0.25)
    again = ledger.Ledger.from_state(book.state())
    self.assertEqual(again, book)
    self.assertEqual(again.figures()['rollout/discarded'], 2.0)

  def test_A5_shares_of_every_reason(self):
    reasons = [reason.value for reason in term.DiscardReason]
    self.assertEqual(ledger.Ledger().shares(), dict.fromkeys(reasons, 0.0))
    book = ledger.Ledger()
    book.start(1)
    book.record(admit([rollout(termination='cancelled')]))
    self.assertEqual(
        book.shares(), {**dict.fromkeys(reasons, 0.0), 'cancelled': 1.0}
    )

  def test_A5_discards_by_reason_and_kind_of_end(self):
    book = ledger.Ledger()
    book.start(3)
    book.record(admit([
        rollout(rollout_id='r0', terminal_reward=None),
        rollout(rollout_id='r1', terminal_reward=None),
        rollout(
            rollout_id='r2', terminal_reward=None, termination='policy_stop'
        ),
    ]))
    self.assertEqual(
        book.discarded_by_kind,
        {'reward_missing/success': 2, 'reward_missing/policy_stop': 1},
    )
    self.assertEqual(book.discarded, {'reward_missing': 3})

  def test_A5_discards_by_source_length_and_age(self):
    book = ledger.Ledger()
    book.start(4)
    # 9 tokens each, so from 8; drawn under version 2 or, one, version 4.
    at = lambda name, source, **how: rollout(
        rollout_id=name, source=source, **{'version': 2, **how}
    )
    book.record(
        admit([
            at('r0', 'easy'),
            at('r1', 'easy', termination='cancelled'),
            at('r2', 'hard', termination='cancelled', version=4),
            at('r3', 'hard', termination='cancelled'),
        ]),
        version=5,
    )
    figures = {
        name: value
        for name, value in book.figures().items()
        if name.startswith('rollout/discard_')
    }
    self.assertEqual(
        figures,
        {
            'rollout/discard_share/cancelled': 3 / 4,
            'rollout/discard_source/easy': 1 / 2,
            'rollout/discard_source/hard': 1.0,
            'rollout/discard_length/8': 3 / 4,
            'rollout/discard_age/2': 2 / 3,  # 3 updates
            'rollout/discard_age/1': 1.0,
        },
    )
    self.assertEmpty(tags.unknown(figures))
    # A checkpoint from before has no such counts.
    old = {
        name: value
        for name, value in book.state().items()
        if not name.endswith('_by')
    }
    self.assertEqual(ledger.Ledger.from_state(old).started, 4)

  def test_A5_a_lost_rollout_is_noticed(self):
    book = ledger.Ledger()
    book.start(1)
    book.record(admit([rollout(), rollout(rollout_id='r1')]))
    with self.assertRaisesRegex(RuntimeError, 'do not add up'):
      book.assert_balanced()
    lost = ledger.Ledger(started=3, running=2)
    with self.assertRaisesRegex(RuntimeError, '3 started'):
      lost.assert_balanced()

  def test_A5_discarded_records_carry_their_reason(self):
    (record,) = admit([rollout(terminal_reward=None)]).discarded
    self.assertEqual(record.discard_reason, term.DiscardReason.REWARD_MISSING)


class AnchorTest(absltest.TestCase):

  def test_T12_a_task_without_outcomes_is_named_once(self):
    anchors = ledger.Anchors()
    cut_off = admit([rollout(termination='budget_truncation')])
    scored = admit([rollout()])
    record = lambda result: anchors.record(result, max_unscored=2)
    self.assertEmpty(record(cut_off))
    self.assertEqual(record(cut_off), ['t0'])
    self.assertEmpty(record(cut_off))
    self.assertEmpty(record(scored))
    self.assertEmpty(record(cut_off))
    self.assertEqual(record(cut_off), ['t0'])


if __name__ == '__main__':
  absltest.main()
