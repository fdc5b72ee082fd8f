"""E7, E11: which rollouts may be compared with each other."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.rewards import scaling
from rl_tpu.rollout import comparison
from rl_tpu.types import termination as term
from tests import group_cases

Turn = group_cases.Turn


def member(name, score=0.0, tenant=None, start=0.0, end=0.0, **changes):
  return group_cases.member(
      name, [Turn(1)], score, tenant_id=tenant, t_start=start, t_end=end,
      **changes,
  )


def admit(rollouts, **settings):
  group = schema.GroupConfig(size=len(rollouts), **settings)
  return group_cases.admit(rollouts, group=group)


def compared(rollouts, **settings) -> list[list[str]]:
  admitted = admit(rollouts, **settings)
  parts: dict[int, list[str]] = {}
  for entry in admitted.admitted:
    parts.setdefault(entry.subgroup, []).append(entry.rollout.rollout_id)
  return list(parts.values())


class TenantTest(parameterized.TestCase):

  def test_E11_two_at_once_in_one_tenant_are_compared_with_nobody(self):
    rollouts = [
        member('a', tenant='x', start=0, end=5),
        member('b', tenant='x', start=4, end=9),
        member('c', tenant='y', start=0, end=9),
        member('d', start=0, end=9),
    ]
    self.assertEqual(compared(rollouts), [['c', 'd']])
    admitted = admit(rollouts)
    self.assertEqual(admitted.counters['group/shared_tenant'], 2)
    self.assertEqual(admitted.counters['group/mismatched'], 1)
    self.assertEqual(
        admitted.discard_counts, {term.DiscardReason.GROUP_INCOMPLETE: 2}
    )

  def test_E11_one_after_the_other_is_no_mismatch(self):
    rollouts = [
        member('a', tenant='x', start=0, end=4),
        member('b', tenant='x', start=4, end=9),
    ]
    self.assertEqual(compared(rollouts), [['a', 'b']])
    self.assertEqual(admit(rollouts).counters['group/shared_tenant'], 0)

  def test_E11_no_tenant_is_shared_by_nobody(self):
    rollouts = [member('a', start=0, end=9), member('b', start=0, end=9)]
    self.assertEqual(compared(rollouts), [['a', 'b']])

  def test_E11_another_group_may_use_the_tenant(self):
    rollouts = [
        member('a', tenant='x', start=0, end=9),
        member('b', tenant='y', start=0, end=9),
        member('c', tenant='x', start=0, end=9, group_id='g1'),
        member('d', tenant='y', start=0, end=9, group_id='g1'),
    ]
    self.assertEqual(compared(rollouts), [['a', 'b'], ['c', 'd']])

  def test_E11_a_sibling_that_is_not_trained_on_disturbs_all_the_same(self):
    lost = member('b', None, tenant='x', start=1, end=2)
    rollouts = [
        member('a', tenant='x', start=0, end=9),
        lost,
        member('c', start=0, end=9),
        member('d', start=0, end=9),
    ]
    self.assertEqual(compared(rollouts), [['c', 'd']])
    self.assertEqual(admit(rollouts).counters['group/shared_tenant'], 1)

  def test_E11_is_a_mismatch_in_the_sense_of_E7(self):
    rollouts = [
        member('a', tenant='x', start=0, end=9),
        member('b', tenant='x', start=0, end=9),
        member('c'),
        member('d'),
    ]
    self.assertEqual(compared(rollouts, on_mismatch='drop'), [])
    with self.assertRaisesRegex(ValueError, 'group.on_mismatch is error'):
      admit(rollouts, on_mismatch='error')

  @parameterized.parameters(
      # (start, end) by rollout, and who shares a tenant with whom at once.
      ([(0, 9), (1, 2), (3, 4)], 'abc'),
      ([(0, 1), (0.5, 3), (2, 4)], 'abc'),
      ([(0, 9), (9, 10), (10, 11)], ''),
      ([(0, 2), (1, 3), (5, 6)], 'ab'),
      ([(5, 6), (1, 3), (0, 2)], 'bc'),
  )
  def test_E11_overlaps(self, times, expected):
    rollouts = [
        member(name, tenant='x', start=start, end=end)
        for name, (start, end) in zip('abc', times)
    ]
    self.assertEqual(comparison.shared_tenants(rollouts), set(expected))


class KeyTest(absltest.TestCase):

  def test_E7_other_scales_are_not_compared(self):
    # Two verifier versions share no comparison anyway; here the scale differs
    # because one member comes from another source (D1).
    scales = scaling.Scales(
        schema.RewardConfig(weights=group_cases.WEIGHTS, norm='running')
    )
    scales.record(['s', 's'], [0.0, 4.0])
    rollouts = [
        member('a', 1.0),
        member('b', 0.0),
        dataclasses.replace(member('c', 0.0), source='new'),
    ]
    admitted = group_cases.admit(
        rollouts,
        reward=scales.config,
        scales=scales,
        group=schema.GroupConfig(size=3),
    )
    self.assertEqual(
        [a.rollout.rollout_id for a in admitted.admitted], ['a', 'b']
    )
    self.assertEqual(admitted.counters['group/mismatched'], 1)

  def test_E7_members_discarded_before_do_not_count(self):
    rollouts = [member('a', 1.0), member('b', None), member('c', None)]
    admitted = admit(rollouts)
    self.assertEmpty(admitted.admitted)
    self.assertEqual(
        admitted.discard_counts,
        {
            term.DiscardReason.GROUP_INCOMPLETE: 1,
            term.DiscardReason.REWARD_MISSING: 2,
        },
    )
    # One that is left out for another reason is no mismatch.
    self.assertEqual(admitted.counters['group/mismatched'], 0)

  def test_E7_no_member_is_repeated(self):
    rollouts = [member('a', 1.0), member('b', 0.0), member('c', None)]
    self.assertEqual(compared(rollouts), [['a', 'b']])


if __name__ == '__main__':
  absltest.main()
