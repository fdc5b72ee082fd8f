"""Rollout figures count rollouts, never rows (A6, A1)."""

import dataclasses

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.metrics import summary
from rl_tpu.metrics import tags
from rl_tpu.metrics import transcripts
from rl_tpu.records import records
from rl_tpu.types import budget as budget_lib
from rl_tpu.types import termination as term

KIND = term.Termination
RULES = term.TerminationRules()


def segment(index: int, roles: str, turns: list[int], end: str):
  length = len(roles)
  return records.Segment(
      rollout_id='r',
      segment_index=index,
      global_token_offset=0,
      action_offset=0,
      turn_offset=0,
      end_kind=end,
      prev_state_ref=None,
      next_state_ref=None,
      summary_hash=None,
      summary_author=None,
      context_length=1,
      context_hash='',
      token=np.arange(length, dtype=np.int32) + 65,
      role=np.array(list(roles)),
      turn_id=np.array(turns, np.int32),
      token_type=np.zeros(length, np.int32),
      reward=np.where(np.array(list(roles)) == 'A', 0.25, 0.0),
      behaviour_logprob=np.zeros(length, np.float32),
      behaviour_version=np.zeros(length, np.int32),
  )


def rollout(kind=KIND.POLICY_STOP, *, score=1.0, solved=True, **changes):
  segments = changes.pop(
      'segments',
      (
          segment(0, 'CAAOS', [-1, 0, 0, -1, 1], 'compaction_cut'),
          segment(1, 'CCA', [-1, -1, 2], kind.value),
      ),
  )
  fields = dict(
      rollout_id='r',
      task_id='t',
      source='src',
      task_family='fam',
      group_id=None,
      termination=kind,
      abort_cause=None,
      fault_cause=None,
      terminal_reward=score,
      solved=solved,
      reward_components={'tool_valid': [(0, 2, 1.0), (1, 2, 0.5)]},
      env_name='',
      env_version='',
      env_seed=0,
      env_snapshot='',
      permissions_hash='',
      tool_set_hash='',
      verifier_id='',
      verifier_version='',
      verifier_input_hash='',
      budgets=budget_lib.Budget(),
      num_segments=len(segments),
      segments=segments,
      counters={'tool_calls': 2, 'tool_errors': 1, 'retries': 3},
  )
  return records.Rollout(**(fields | changes))


def judged(record, *, holds_at_eval=True):
  verdict = term.judge(
      record.termination,
      abort_cause=record.abort_cause,
      terminal_reward=record.terminal_reward,
      budget_visible=False,
      holds_at_eval=holds_at_eval,
      rules=RULES,
  )
  return record, verdict


def discarded(kind=KIND.INFRA_FAILURE, **changes):
  fields = dict(
      score=None,
      solved=None,
      fault_cause=term.FaultCause.VERIFIER,
      discard_reason=term.DiscardReason.INFRA_FAILURE,
  )
  return rollout(kind, **(fields | changes))


class SuccessTest(parameterized.TestCase):

  @parameterized.parameters(
      (KIND.SUCCESS, None, False, True),
      (KIND.FAILURE, None, True, False),
      (KIND.POLICY_STOP, None, True, True),
      (KIND.POLICY_STOP, None, False, False),
      (KIND.POLICY_STOP, None, None, None),
      (KIND.BUDGET_TRUNCATION, None, True, True),
      (KIND.CONTEXT_TRUNCATION, None, False, False),
      (KIND.RUNTIME_ABORT, term.AbortCause.POLICY_VIOLATION, True, False),
      (KIND.RUNTIME_ABORT, term.AbortCause.RESOURCE_LIMIT, True, True),
      (KIND.RUNTIME_ABORT, term.AbortCause.OPERATOR, True, None),
      (KIND.INFRA_FAILURE, None, True, None),
      (KIND.CANCELLED, None, True, None),
  )
  def test_table_2_2_counts_in_the_success_rate(
      self, kind, cause, solved, expected
  ):
    record = rollout(kind, solved=solved, abort_cause=cause)
    self.assertIs(summary.is_solved(record), expected)

  def test_A6_success_is_reported_three_ways(self):
    admitted = [
        judged(rollout(solved=True)),
        judged(rollout(solved=False)),
        # Solved when the budget ended, scored there: T3 terminal.
        judged(rollout(KIND.BUDGET_TRUNCATION, solved=True)),
        # Bootstrapped: its score was recorded and is not used.
        judged(
            rollout(KIND.BUDGET_TRUNCATION, solved=True), holds_at_eval=False
        ),
    ]
    figures = summary.success_figures(admitted, [discarded()])
    self.assertAlmostEqual(figures['reward/success'], 2 / 3)
    self.assertAlmostEqual(
        figures['reward/success_truncated_as_failure'], 1 / 4
    )
    self.assertAlmostEqual(
        figures['reward/success_discarded_as_failure'], 2 / 5
    )

  def test_nothing_scored_is_undefined(self):
    figures = summary.success_figures([], [discarded()])
    self.assertIsNone(figures['reward/success'])
    self.assertEqual(figures['reward/success_discarded_as_failure'], 0.0)
    self.assertEqual(summary.rollout_figures([], []), {})

  def test_K35_a_failed_rollout_is_not_in_the_mean(self):
    admitted = [judged(rollout(score=s, solved=bool(s))) for s in (1, 0, 0)]
    figures = summary.reward_figures(admitted, [discarded()])
    self.assertAlmostEqual(figures['reward/raw'], 1 / 3)
    self.assertAlmostEqual(figures['reward/success'], 1 / 3)
    self.assertEqual(figures['reward/verifier_faults'], 1.0)

  def test_components_are_sums_per_rollout(self):
    admitted = [judged(rollout()), judged(rollout(reward_components={}))]
    figures = summary.reward_figures(admitted, [])
    self.assertAlmostEqual(figures['reward/component/tool_valid'], 0.75)
    self.assertEqual(figures['reward/success_source/src'], 1.0)
    self.assertEqual(figures['reward/success_family/fam'], 1.0)
    self.assertEqual(tags.unknown(figures), [])


class RolloutFiguresTest(absltest.TestCase):

  def test_lengths_and_ends_per_rollout(self):
    short = (segment(0, 'CA', [-1, 0], 'failure'),)
    admitted = [
        judged(rollout()),
        judged(rollout(KIND.FAILURE, segments=short, counters={})),
    ]
    figures = summary.rollout_figures(admitted, [discarded()])
    # Tokens 8, 2, 8; sampled 4, 1, 4; turns 3, 1, 3; segments 2, 1, 2.
    self.assertEqual(figures['rollout/tokens_mean'], 6.0)
    self.assertEqual(figures['rollout/tokens_max'], 8.0)
    self.assertEqual(figures['rollout/tokens_p50'], 8.0)
    self.assertEqual(figures['rollout/actions_mean'], 3.0)
    self.assertAlmostEqual(figures['rollout/turns_mean'], 7 / 3)
    self.assertAlmostEqual(figures['rollout/multi_segment'], 2 / 3)
    self.assertAlmostEqual(figures['rollout/compactions'], 2 / 3)
    self.assertAlmostEqual(figures['rollout/end/failure'], 1 / 3)
    self.assertEqual(figures['rollout/end/cancelled'], 0.0)
    self.assertAlmostEqual(figures['rollout/discarded/infra_failure'], 1 / 3)
    # Tool calls 2, 0, 2 over 7 turns; errors 2 of 4.
    self.assertAlmostEqual(figures['rollout/tool_calls'], 4 / 3)
    self.assertAlmostEqual(figures['rollout/tool_calls_per_turn'], 4 / 7)
    self.assertAlmostEqual(figures['rollout/tool_errors'], 0.5)
    self.assertEqual(figures['rollout/counter/retries'], 2.0)
    self.assertEqual(tags.unknown(figures), [])

  def test_A5_infrastructure_failures_are_counted_by_cause(self):
    cause = term.FaultCause
    failed = [
        discarded(fault_cause=c)
        for c in (cause.TIMEOUT, cause.NETWORK, cause.TIMEOUT)
    ]
    figures = summary.rollout_figures([judged(rollout())], failed)
    shown = {n: v for n, v in figures.items() if n.startswith('rollout/fault')}
    self.assertEqual(
        shown, {'rollout/fault/timeout': 2.0, 'rollout/fault/network': 1.0}
    )
    self.assertEqual(figures['rollout/end/infra_failure'], 0.75)
    self.assertEqual(tags.unknown(figures), [])

  def test_cutting_a_rollout_in_rows_changes_no_length_in_turns(self):
    whole = (segment(0, 'CAAAA', [-1, 0, 0, 1, 1], 'failure'),)
    cut = (
        segment(0, 'CAAA', [-1, 0, 0, 1], 'resume_cut'),
        segment(1, 'CA', [-1, 1], 'failure'),
    )
    self.assertEqual(
        summary.num_turns(rollout(segments=whole)),
        summary.num_turns(rollout(segments=cut)),
    )
    self.assertEqual(summary.num_compactions(rollout(segments=cut)), 0)

  def test_G18_advantage_figures(self):
    figures = summary.advantage_figures(
        np.array([1.0, 3.0, -1.0]), np.array([0.0, 1.0, -1.0])
    )
    self.assertAlmostEqual(figures['adv/mean'], 1.0)
    self.assertAlmostEqual(figures['adv/std'], np.sqrt(8 / 3))
    self.assertAlmostEqual(figures['adv/positive'], 2 / 3)
    self.assertAlmostEqual(figures['adv/std_normalised'], np.sqrt(2 / 3))
    self.assertEqual(tags.unknown(figures), [])


class TranscriptsTest(absltest.TestCase):

  def decode(self, ids):
    return ''.join(chr(i) for i in ids)

  def test_one_row_a_message(self):
    estimates = {
        'rollout_id': 'r',
        'segments': [
            {
                'advantage': [0, 1, 3, 0, 5],
                'value': [9, 0.5, 0.6, 9, 0.7],
                'policy_mask': [0, 1, 1, 0, 0],
            },
            {
                'advantage': [0, 0, -1],
                'value': [9, 9, 0.8],
                'policy_mask': [0, 0, 1],
            },
        ],
    }
    found = transcripts.messages(rollout(), self.decode, estimates)
    self.assertEqual(
        [(m.segment, m.role, m.text) for m in found],
        [
            (0, 'context', 'A'),
            (0, 'action', 'BC'),
            (0, 'observation', 'D'),
            (0, 'summary', 'E'),
            (1, 'context', 'AB'),
            (1, 'action', 'C'),
        ],
    )
    self.assertEqual(
        [m.advantage for m in found], [None, 2.0, None, None, None, -1.0]
    )
    self.assertEqual(
        [m.value for m in found], [None, 0.5, None, 0.7, None, 0.8]
    )
    self.assertEqual([m.trained for m in found], [0, 2, 0, 0, 0, 1])
    self.assertEqual([m.reward for m in found], [0, 0.5, 0, 0, 0, 0.25])

  def test_without_estimates(self):
    found = transcripts.messages(rollout(), self.decode)
    self.assertEqual({m.advantage for m in found}, {None})
    self.assertEqual(
        transcripts.cells(found[1]), ('0', 'action', 'BC', '0.5', '', '', '')
    )

  def test_two_turns_in_a_row_are_two_messages(self):
    segments = (segment(0, 'CAA', [-1, 0, 1], 'failure'),)
    found = transcripts.messages(rollout(segments=segments), self.decode)
    self.assertEqual([m.text for m in found], ['A', 'B', 'C'])

  def test_markdown_keeps_text_from_becoming_markup(self):
    found = transcripts.markdown(
        rollout(rollout_id='a_b'), lambda ids: '| *x*\n'
    )
    lines = found.splitlines()
    self.assertStartsWith(lines[0], '**rollout a\\_b, task t, policy\\_stop')
    self.assertLen(
        {line.replace('\\|', '').count('|') for line in lines[2:]}, 1
    )
    self.assertIn('\\| \\*x\\*⏎', found)

  def test_cuts_by_cause_and_the_verifiers_own_figures(self):
    cut = segment(0, 'CA', [-1, 0], 'compaction_cut')
    last = segment(1, 'CA', [-1, 1], 'policy_stop')
    made = lambda *causes, **changes: rollout(
        segments=(
            *(dataclasses.replace(cut, cut_cause=cause) for cause in causes),
            last,
        ),
        **changes,
    )
    both = [
        made('policy_summary', 'template', score_components={'a': 1.0}),
        made('policy_summary', score_components={'a': 0.0, 'b': 0.5}),
    ]
    figures = summary.rollout_figures([(r, None) for r in both], ())
    cuts = {n: v for n, v in figures.items() if n.startswith('rollout/cuts/')}
    self.assertEqual(
        cuts, {'rollout/cuts/policy_summary': 1.0, 'rollout/cuts/template': 0.5}
    )
    verdict = term.Verdict(True, True, term.EndMode.TERMINAL, 1.0, None)
    figures = summary.reward_figures([(r, verdict) for r in both], ())
    self.assertEqual(figures['reward/score/a'], 0.5)
    # Of the one rollout that has it.
    self.assertEqual(figures['reward/score/b'], 0.5)
    self.assertEmpty(tags.unknown(cuts))


if __name__ == '__main__':
  absltest.main()
