"""T2 to T7, T11: the whole table 2.2, written out by hand.

A row names a kind, its cause, the recorded score and the rules, and the
verdict that the table gives. The two budget flags stand where a rule reads
them.
"""

import itertools

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.types import termination as term

KIND, CAUSE = term.Termination, term.AbortCause
REASON = term.DiscardReason
END, VALUE = term.EndMode.TERMINAL, term.EndMode.BOOTSTRAP
FLAGS = tuple(itertools.product((False, True), repeat=2))


def judge(
    kind, *, cause=None, score=None, flags=(None, None), **rules
) -> term.Verdict:
  return term.judge(
      kind,
      abort_cause=cause,
      terminal_reward=score,
      budget_visible=flags[0],
      holds_at_eval=flags[1],
      rules=term.TerminationRules(**rules),
  )


def trained(score: float) -> term.Verdict:
  """In both batches, value 0 after the last action, scored."""
  return term.Verdict(True, True, END, score, None)


BOOTSTRAPPED = term.Verdict(True, True, VALUE, None, None)
MISSING = term.Verdict(False, False, END, None, REASON.REWARD_MISSING)


def out(reason, critic=False) -> term.Verdict:
  """Not in the policy batch; without a score."""
  return term.Verdict(False, critic, VALUE, None, reason)


class EndTest(parameterized.TestCase):

  @parameterized.parameters(
      (KIND.SUCCESS, 1.0, trained(1.0)),
      (KIND.SUCCESS, 0.25, trained(0.25)),
      (KIND.SUCCESS, 0.0, trained(0.0)),
      (KIND.SUCCESS, None, MISSING),
      (KIND.POLICY_STOP, 0.5, trained(0.5)),
      (KIND.POLICY_STOP, -1.0, trained(-1.0)),
      (KIND.POLICY_STOP, None, MISSING),
      (KIND.FAILURE, -0.5, trained(-0.5)),
      (KIND.FAILURE, 0.25, trained(0.25)),
      # T7: null is 0 here, or the behaviour to unlearn would be left out.
      (KIND.FAILURE, None, trained(0.0)),
      (KIND.INFRA_FAILURE, 1.0, out(REASON.INFRA_FAILURE)),
      (KIND.INFRA_FAILURE, None, out(REASON.INFRA_FAILURE)),
      (KIND.CANCELLED, 1.0, out(REASON.CANCELLED)),
      (KIND.CANCELLED, None, out(REASON.CANCELLED)),
  )
  def test_T7_table_ends_that_read_no_rule(self, kind, score, expected):
    # Nor the flags: all four pairs, and none at all.
    for flags in (*FLAGS, (None, None)):
      self.assertEqual(judge(kind, score=score, flags=flags), expected)

  @parameterized.parameters(
      ('infra_failure_critic', KIND.INFRA_FAILURE, REASON.INFRA_FAILURE),
      ('cancelled_critic', KIND.CANCELLED, REASON.CANCELLED),
  )
  def test_T6_the_critic_alone_keeps_a_lost_rollout(self, rule, kind, reason):
    # T2: it is bootstrapped, so its score is not used; the reason stays.
    for score in (1.0, None):
      self.assertEqual(
          judge(kind, score=score, **{rule: 'bootstrap'}), out(reason, True)
      )
    other = {
        KIND.INFRA_FAILURE: 'cancelled_critic',
        KIND.CANCELLED: 'infra_failure_critic',
    }[kind]
    self.assertEqual(judge(kind, **{other: 'bootstrap'}), out(reason))


class TruncationTest(parameterized.TestCase):

  @parameterized.product(
      kind=(KIND.BUDGET_TRUNCATION, KIND.CONTEXT_TRUNCATION, CAUSE),
      flags=FLAGS,
      score=(0.5, -1.0, None),
  )
  def test_T3_T4_T5_auto_is_decided_by_the_two_flags(self, kind, flags, score):
    kind, cause = self.place(kind)
    # Visible, or the same at evaluation: an end like any other. Else the
    # rollout would have gone on, and its score is recorded and not used (T2).
    expected = BOOTSTRAPPED
    if flags != (False, False):
      expected = MISSING if score is None else trained(score)
    self.assertEqual(
        judge(kind, cause=cause, score=score, flags=flags), expected
    )

  @parameterized.product(
      kind=(KIND.BUDGET_TRUNCATION, KIND.CONTEXT_TRUNCATION, CAUSE),
      flags=(*FLAGS, (None, None)),
  )
  def test_T3_T4_T5_configured_modes_read_no_flag(self, kind, flags):
    kind, cause = self.place(kind)
    rule = (
        'context_truncation'
        if kind == KIND.CONTEXT_TRUNCATION
        else 'budget_truncation'
    )
    found = lambda mode, score: judge(
        kind, cause=cause, score=score, flags=flags, **{rule: mode}
    )
    self.assertEqual(found('bootstrap', 0.5), BOOTSTRAPPED)
    self.assertEqual(found('bootstrap', None), BOOTSTRAPPED)
    self.assertEqual(found('terminal', 0.5), trained(0.5))
    self.assertEqual(found('terminal', None), MISSING)

  def place(self, kind):
    """The kind and cause; a resource limit goes as a budget (T5)."""
    if kind is CAUSE:
      return KIND.RUNTIME_ABORT, CAUSE.RESOURCE_LIMIT
    return kind, None

  def test_T4_each_truncation_has_its_own_rule(self):
    rules = {'budget_truncation': 'terminal', 'context_truncation': 'bootstrap'}
    self.assertEqual(
        judge(KIND.BUDGET_TRUNCATION, score=1.0, **rules), trained(1.0)
    )
    self.assertEqual(
        judge(KIND.CONTEXT_TRUNCATION, score=1.0, **rules), BOOTSTRAPPED
    )

  @parameterized.parameters((None, None), (None, False), (True, None))
  def test_T3_auto_without_the_flags_is_refused(self, *flags):
    for kind in (KIND.BUDGET_TRUNCATION, KIND.CONTEXT_TRUNCATION):
      with self.assertRaisesRegex(ValueError, 'budget_visible.*holds_at_eval'):
        judge(kind, score=1.0, flags=flags)

  @parameterized.parameters(
      (KIND.SUCCESS, None, False),
      (KIND.FAILURE, None, False),
      (KIND.POLICY_STOP, None, False),
      (KIND.BUDGET_TRUNCATION, None, True),
      (KIND.CONTEXT_TRUNCATION, None, True),
      (KIND.RUNTIME_ABORT, CAUSE.POLICY_VIOLATION, False),
      (KIND.RUNTIME_ABORT, CAUSE.RESOURCE_LIMIT, True),
      (KIND.RUNTIME_ABORT, CAUSE.OPERATOR, False),
      (KIND.RUNTIME_ABORT, CAUSE.UNKNOWN, False),
      (KIND.INFRA_FAILURE, None, False),
      (KIND.CANCELLED, None, False),
  )
  def test_table_what_is_listed_as_truncated(self, kind, cause, expected):
    self.assertEqual(term.is_truncation(kind, cause), expected)


class AbortTest(parameterized.TestCase):

  @parameterized.parameters(
      (None, 0.0, False),
      (-1.0, -1.0, False),
      (0.0, 0.0, False),
      (0.75, 0.0, True),  # T7: replaced and counted.
  )
  def test_T5_T7_a_violation_is_always_terminal(self, score, used, counted):
    expected = term.Verdict(True, True, END, used, None, counted)
    for mode in ('by_cause', 'terminal', 'bootstrap', 'exclude'):
      for flags in (*FLAGS, (None, None)):
        found = judge(
            KIND.RUNTIME_ABORT, cause=CAUSE.POLICY_VIOLATION, score=score,
            flags=flags, runtime_abort=mode, budget_truncation='bootstrap',
        )
        self.assertEqual(found, expected)

  @parameterized.parameters(
      # Under by_cause a resource limit follows T3; the others are left out.
      ('by_cause', CAUSE.RESOURCE_LIMIT, 0.5, trained(0.5)),
      ('by_cause', CAUSE.OPERATOR, 0.5, out(REASON.RUNTIME_ABORT)),
      ('by_cause', CAUSE.UNKNOWN, 0.5, out(REASON.RUNTIME_ABORT)),
      ('terminal', CAUSE.RESOURCE_LIMIT, 0.5, trained(0.5)),
      ('terminal', CAUSE.OPERATOR, 0.5, trained(0.5)),
      ('terminal', CAUSE.UNKNOWN, 0.5, trained(0.5)),
      ('terminal', CAUSE.OPERATOR, None, MISSING),
      ('terminal', CAUSE.UNKNOWN, None, MISSING),
      ('bootstrap', CAUSE.RESOURCE_LIMIT, 0.5, BOOTSTRAPPED),
      ('bootstrap', CAUSE.OPERATOR, 0.5, BOOTSTRAPPED),
      ('bootstrap', CAUSE.UNKNOWN, None, BOOTSTRAPPED),
      ('exclude', CAUSE.RESOURCE_LIMIT, 0.5, out(REASON.RUNTIME_ABORT)),
      ('exclude', CAUSE.OPERATOR, 0.5, out(REASON.RUNTIME_ABORT)),
      ('exclude', CAUSE.UNKNOWN, None, out(REASON.RUNTIME_ABORT)),
  )
  def test_T5_modes_and_causes(self, mode, cause, score, expected):
    found = judge(
        KIND.RUNTIME_ABORT, cause=cause, score=score, flags=(True, True),
        runtime_abort=mode,
    )
    self.assertEqual(found, expected)

  def test_T5_a_cause_is_needed(self):
    with self.assertRaisesRegex(ValueError, 'abort_cause'):
      judge(KIND.RUNTIME_ABORT, score=1.0, flags=(True, True))


class PropertyTest(absltest.TestCase):

  def test_T2_bootstrapping_and_scoring_exclude_each_other(self):
    for verdict in self.every_verdict():
      if verdict.end_mode == VALUE:
        self.assertIsNone(verdict.score)
      elif verdict.in_policy_batch:
        self.assertIsNotNone(verdict.score)

  def test_a_rollout_has_a_reason_or_trains_the_policy(self):
    for verdict in self.every_verdict():
      self.assertEqual(verdict.in_policy_batch, verdict.reason is None)
      # What trains the actor trains the critic.
      if verdict.in_policy_batch:
        self.assertTrue(verdict.in_critic_batch)

  def every_verdict(self):
    aborts = [(KIND.RUNTIME_ABORT, cause) for cause in CAUSE]
    kinds = [(k, None) for k in KIND if k != KIND.RUNTIME_ABORT] + aborts
    modes = itertools.product(
        ('auto', 'bootstrap', 'terminal'),
        ('by_cause', 'terminal', 'bootstrap', 'exclude'),
        ('exclude', 'bootstrap'),
    )
    for mode, abort, critic in modes:
      for (kind, cause), flags, score in itertools.product(
          kinds, FLAGS, (None, -1.0, 0.0, 1.0)
      ):
        yield judge(
            kind, cause=cause, flags=flags, score=score,
            budget_truncation=mode, context_truncation=mode,
            runtime_abort=abort, infra_failure_critic=critic,
            cancelled_critic=critic,
        )

  def test_defaults_of_the_table(self):
    self.assertEqual(
        term.TerminationRules(),
        term.TerminationRules(
            budget_truncation='auto',
            context_truncation='auto',
            runtime_abort='by_cause',
            infra_failure_critic='exclude',
            cancelled_critic='exclude',
            max_missing=0.05,
            max_unscored=20,
        ),
    )

  def test_T11_A5_reasons_in_the_order_of_decision(self):
    self.assertEqual(
        [reason.value for reason in REASON],
        [
            'malformed', 'token_mismatch', 'broken_chain', 'no_action_tokens',
            'support_unreplayable', 'infra_failure', 'cancelled',
            'runtime_abort', 'reward_missing', 'safety_refusal', 'stale',
            'filtered_by_user_rule', 'context_overlong', 'group_incomplete',
            'nonfinite',
        ],
    )

  def test_kinds_causes_and_cuts_have_the_names_of_the_records(self):
    self.assertEqual(
        {kind.value for kind in KIND},
        {
            'success', 'failure', 'policy_stop', 'budget_truncation',
            'context_truncation', 'runtime_abort', 'infra_failure',
            'cancelled',
        },
    )
    self.assertEqual(
        {cause.value for cause in CAUSE},
        {'policy_violation', 'resource_limit', 'operator', 'unknown'},
    )
    self.assertEqual(
        {cut.value for cut in term.Cut}, {'compaction_cut', 'resume_cut'}
    )
    self.assertEqual(
        {fault.value for fault in term.FaultCause},
        {
            'environment', 'verifier', 'sandbox', 'network', 'sampler',
            'timeout', 'memory',
        },
    )


if __name__ == '__main__':
  absltest.main()
