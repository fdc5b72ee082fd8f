"""E9: groups without spread make room, and stay in the books."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.rollout import admission
from rl_tpu.rollout import ledger
from rl_tpu.rollout import replacement
from rl_tpu.types import termination as term
from tests import group_cases

Turn = group_cases.Turn


def group(name, scores, *, steps=(), **changes):
  """Members of one group; a step reward each where given."""
  return [
      group_cases.member(
          f'{name}{i}',
          [Turn(2, steps[i] if steps else None)],
          score,
          task_id=name,
          group_id=name,
          **changes,
      )
      for i, score in enumerate(scores)
  ]


def admit(*groups, estimator='grpo', **settings):
  config = schema.GroupConfig(size=2, **settings)
  return group_cases.admit(
      [member for made in groups for member in made], estimator, group=config
  )


class FlatTest(parameterized.TestCase):

  def flat(self, admitted, estimator='grpo', **settings):
    return replacement.flat_groups(
        admitted,
        estimator=estimator,
        group=schema.GroupConfig(size=2, **settings),
    )

  def test_E9_groups_whose_returns_have_no_spread(self):
    admitted = admit(
        group('zero', [0.0, 0.0]),
        group('mixed', [1.0, 0.0]),
        group('one', [1.0, 1.0]),
        group('rounding', [0.1 + 0.2, 0.3]),
    )
    self.assertEqual(self.flat(admitted), ['zero', 'one', 'rounding'])

  def test_E2_E9_step_rewards_are_part_of_the_return(self):
    # Scores differ and returns do not; and the reverse.
    admitted = admit(
        group('a', [1.0, 0.0], steps=[0.0, 1.0]),
        group('b', [0.0, 0.0], steps=[0.0, 1.0]),
    )
    self.assertEqual(self.flat(admitted), ['a'])
    self.assertEqual(self.flat(admitted, outcome_only=True), ['b'])

  def test_E5_E9_process_supervision_looks_at_the_steps(self):
    admitted = admit(
        group('a', [1.0, 0.0], steps=[2.0, 2.0]),
        group('b', [0.0, 0.0], steps=[0.0, 1.0]),
        group('c', [1.0, 0.0]),
        estimator='process',
    )
    self.assertEqual(self.flat(admitted, 'process'), ['a', 'c'])

  def test_E9_one_comparison_with_spread_keeps_a_split_group(self):
    admitted = admit(
        group('a', [1.0, 1.0]) + group('a', [1.0, 0.0], env_version='2')
    )
    ids = [m.rollout.rollout_id for m in admitted.admitted]
    self.assertLen(ids, 4)
    self.assertEqual(self.flat(admitted), [])

  def test_E9_a_group_that_nothing_is_left_of_is_not_flat(self):
    admitted = admit(group('a', [1.0, None]), group('b', [1.0, 1.0]))
    self.assertEqual(self.flat(admitted), ['b'])
    self.assertEqual(self.flat(admit()), [])


class ReplaceTest(absltest.TestCase):

  def test_E9_A5_the_ledger_stays_balanced(self):
    first = admit(group('a', [0.0, 0.0]), group('b', [1.0, 0.0]))
    second = admit(group('c', [1.0, 0.0]), group('d', [None, 1.0]))
    books = ledger.Ledger()
    books.start(8)
    books.end(8)
    kept = replacement.discard_groups(first, ['a'])
    self.assertEqual(
        kept.discard_counts, {term.DiscardReason.FILTERED_BY_USER_RULE: 2}
    )
    self.assertIn('group.dynamic_sampling', kept.discards[0].detail)
    merged = replacement.merge(kept, second)
    books.record(merged)
    books.assert_balanced()
    self.assertEqual(books.admitted, 4)
    self.assertEqual(
        books.discarded,
        {
            'filtered_by_user_rule': 2,
            'group_incomplete': 1,
            'reward_missing': 1,
        },
    )

  def test_E7_E9_comparisons_stay_apart(self):
    merged = replacement.merge(
        admit(group('a', [0.0, 1.0]), group('b', [1.0, 0.0])),
        admit(group('c', [5.0, 0.0])),
    )
    self.assertEqual(
        [m.subgroup for m in merged.admitted], [0, 0, 1, 1, 2, 2]
    )
    batch = group_cases.build(merged)
    self.assertEqual(batch.subgroup_R.tolist(), [0, 0, 1, 1, 2, 2])

  def test_E9_E11_counters_add_up(self):
    shared = {'tenant_id': 'x', 't_start': 0.0, 't_end': 1.0}
    parts = [
        admit(group(name, [0.0, 1.0], **shared), group(f'{name}s', [0.0, 1.0]))
        for name in 'ab'
    ]
    merged = replacement.merge(*parts)
    self.assertEqual(merged.counters['group/shared_tenant'], 4)
    self.assertEqual(merged.counters['group/mismatched'], 2)

  def test_E9_a_counter_of_one_batch_alone_is_kept(self):
    parts = [
        admission.Admission((), (), counters)
        for counters in ({'a': 2.0, 'b': 3.0}, {'b': 4.0, 'c': 5.0})
    ]
    self.assertEqual(
        replacement.merge(*parts).counters, {'a': 2.0, 'b': 7.0, 'c': 5.0}
    )

  def test_E9_merging_with_nothing_changes_nothing(self):
    first = admit(group('a', [0.0, 1.0]))
    merged = replacement.merge(
        replacement.discard_groups(first, []), admit()
    )
    self.assertEqual(merged.admitted, first.admitted)
    self.assertEqual(dict(merged.counters), dict(first.counters))


if __name__ == '__main__':
  absltest.main()
