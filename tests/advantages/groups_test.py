"""E1 to E4, E7, G15, K09, K10, K17, K35: rollouts of one task."""

import dataclasses
from typing import Any

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.metrics import group_figures
from rl_tpu.metrics import summary
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.types import termination as term
from tests import golden_io
from tests import group_cases

_CASES = golden_io.cases('groups')
GROUPS = [(c['id'], c) for c in _CASES if c['kind'] == 'group']
COMPARABILITY = [(c['id'], c) for c in _CASES if c['kind'] == 'comparability']


def rollout(
    name: str, score: float | None, segments: int = 1, **changes: Any
) -> records.Rollout:
  """A rollout of one task: each segment is context and two actions."""
  return group_cases.member(
      name,
      [group_cases.Turn(2)] * segments,
      score,
      cuts=[2 * k for k in range(1, segments)],
      **changes,
  )


def admit(rollouts, estimator='grpo', **settings) -> admission.Admission:
  group = schema.GroupConfig(size=max(len(rollouts), 2), **settings)
  return group_cases.admit(rollouts, estimator, group=group)


def advantages(rollouts, estimator='grpo', **settings) -> dict[str, list[Any]]:
  """Advantages of every action by rollout, through admission and packing."""
  found = group_cases.advantages(
      rollouts, estimator, row_length=16, **settings
  )
  return {name: values.tolist() for name, values in found.items()}


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*GROUPS)
  def test_E3_E4_G15_estimators(self, golden):
    config, expected = golden['config'], golden['expected']
    rewards = golden['rewards']
    ids = [f'm{i}' for i in range(len(rewards))]
    parts = groups.partition(
        [groups.Member(i, 'key', 'group') for i in ids],
        min_size=config['min_group_size'],
    )
    if expected['reason'] == 'group_incomplete':
      self.assertEqual(parts.incomplete, tuple(ids))
      self.assertEmpty(parts.subgroups)
      return
    self.assertEqual(parts.subgroups, (tuple(ids),))
    for estimator in groups.BY_ROLLOUT:
      found = groups.compare(
          dict(zip(ids, rewards)),
          parts.subgroups,
          estimator=estimator,
          eps=config['eps'],
          std_floor=config['std_floor'],
      )
      # Float64 on the host: far closer than G32 asks.
      np.testing.assert_allclose(
          [found[i] for i in ids], expected[estimator], rtol=1e-9, atol=1e-12
      )
    self.assertEqual(
        group_figures.kind(rewards, std_floor=config['std_floor']) != 'mixed',
        expected['zero_variance'],
    )
    if expected['zero_variance']:
      # Exactly: a floor is a decision to learn nothing (E3).
      found = groups.grpo(
          rewards, eps=config['eps'], std_floor=config['std_floor']
      )
      np.testing.assert_array_equal(found, 0.0)

  @parameterized.named_parameters(*GROUPS)
  def test_E1_E3_E4_as_trained(self, golden):
    config, expected = golden['config'], golden['expected']
    settings = {'eps': config['eps'], 'std_floor': config['std_floor']}
    rollouts = [
        rollout(f'm{i}', reward, segments)
        for i, (reward, segments) in enumerate(
            zip(golden['rewards'], golden['segments_per_rollout'])
        )
    ]
    for estimator in groups.BY_ROLLOUT:
      if expected['reason'] == 'group_incomplete':
        self.assertEqual(
            admit(rollouts, estimator).discard_counts,
            {term.DiscardReason.GROUP_INCOMPLETE: len(rollouts)},
        )
        continue
      found = advantages(rollouts, estimator, **settings)
      for i, want in enumerate(expected[estimator]):
        tokens = 2 * golden['segments_per_rollout'][i]
        golden_io.assert_close(found[f'm{i}'], [want] * tokens, name=f'm{i}')

  @parameterized.named_parameters(*COMPARABILITY)
  def test_E7_comparability_as_trained(self, golden):
    config, expected = golden['config'], golden['expected']
    rollouts = []
    for entry in golden['members']:
      # The scale is that of the reward's settings, one for all of them here.
      key = {n: v for n, v in entry['key'].items() if n != 'reward_scale_id'}
      rollouts.append(rollout(entry['rollout_id'], entry['reward'], **key))
    settings = {
        'on_mismatch': config['on_mismatch'],
        'min_size': config['min_group_size'],
    }
    if expected['raises']:
      with self.assertRaisesRegex(ValueError, 'group.on_mismatch is error'):
        admit(rollouts, **settings)
      return
    admitted = admit(rollouts, **settings)
    reasons = {d.rollout.rollout_id: d.reason.value for d in admitted.discards}
    found = advantages(rollouts, **settings)
    for name, want in expected['advantage'].items():
      self.assertEqual(reasons.get(name), expected['reason'][name])
      if want is None:
        self.assertNotIn(name, found)
      else:
        golden_io.assert_close(found[name], [want, want], name=name)

  @parameterized.named_parameters(*COMPARABILITY)
  def test_E7_comparability(self, golden):
    config, expected = golden['config'], golden['expected']
    members = [
        groups.Member(m['rollout_id'], tuple(m['key'].values()), 'group')
        for m in golden['members']
    ]
    settings = {
        'min_size': config['min_group_size'],
        'on_mismatch': config['on_mismatch'],
    }
    if expected['raises']:
      with self.assertRaisesRegex(ValueError, 'group.on_mismatch'):
        groups.partition(members, **settings)
      return
    parts = groups.partition(members, **settings)
    self.assertEqual(parts.num_keys, expected['num_groups'])
    found = groups.compare(
        {m['rollout_id']: m['reward'] for m in golden['members']},
        parts.subgroups,
        estimator='grpo',
        eps=config['eps'],
        std_floor=config['std_floor'],
    )
    for name, want in expected['advantage'].items():
      if want is None:
        self.assertNotIn(name, found)
      else:
        self.assertAlmostEqual(found[name], want, places=9)
    reasons = {
        name
        for name, reason in expected['reason'].items()
        if reason is not None
    }
    self.assertEqual(set(parts.incomplete), reasons)

  def test_E3_E4_numbers_of_the_seed(self):
    for case in golden_io.cases('seed_worked'):
      if 'grpo' not in case['expected']:
        continue
      rewards, expected = case['input']['rewards'], case['expected']
      np.testing.assert_allclose(
          groups.grpo(rewards, eps=0.0, std_floor=1e-6), expected['grpo']
      )
      np.testing.assert_allclose(groups.dr_grpo(rewards), expected['dr_grpo'])
      np.testing.assert_allclose(groups.rloo(rewards), expected['rloo'])


class BatchTest(parameterized.TestCase):

  def test_K09_E1_a_run_of_many_segments_is_one_member(self):
    # Mean 1/3, population deviation sqrt(2)/3.
    found = advantages(
        [rollout('a', 1.0, 4), rollout('b', 0.0, 1), rollout('c', 0.0, 1)]
    )
    np.testing.assert_allclose(found['a'], [1.4142135624] * 8, rtol=1e-6)
    np.testing.assert_allclose(found['b'], [-0.7071067812] * 2, rtol=1e-6)
    np.testing.assert_allclose(found['c'], [-0.7071067812] * 2, rtol=1e-6)

  def test_K10_one_prompt_id_is_one_group(self):
    found = advantages(
        [rollout(n, s) for n, s in zip('abcd', (1.0, 0.0, 0.0, 0.0))]
    )
    np.testing.assert_allclose(found['a'], [1.7320508076] * 2, rtol=1e-6)
    for name in 'bcd':
      np.testing.assert_allclose(found[name], [-0.5773502692] * 2, rtol=1e-6)

  def test_K10_two_prompt_ids_are_two_groups(self):
    # The same scores under two ids: +1 and -1 in each, no common mean.
    second = {'task_id': 't1', 'group_id': 'g1'}
    found = advantages([
        rollout('a', 1.0),
        rollout('b', 0.0),
        rollout('c', 5.0, **second),
        rollout('d', 4.0, **second),
    ])
    for name, want in zip('abcd', (1.0, -1.0, 1.0, -1.0)):
      np.testing.assert_allclose(found[name], [want] * 2, rtol=1e-6)

  @parameterized.parameters(
      {'env_version': '2'},
      {'env_snapshot': 'other'},
      {'permissions_hash': 'root'},
      {'tool_set_hash': 'more'},
      {'verifier_version': '2'},
      {'task_id': 't1'},
  )
  def test_E7_other_conditions_are_not_compared(self, **change):
    rollouts = [
        rollout('a', 1.0),
        rollout('b', 0.0),
        rollout('c', 9.0, **change),
    ]
    found = advantages(rollouts)
    self.assertEqual(found, {'a': [1.0, 1.0], 'b': [-1.0, -1.0]})
    self.assertEqual(
        admit(rollouts).discard_counts, {term.DiscardReason.GROUP_INCOMPLETE: 1}
    )

  @parameterized.parameters(
      ([0.1] * 3,), ([0.35] * 7,), ([0.3] * 7,), ([0.4] * 7,)
  )
  def test_K17_no_spread_is_exactly_no_advantage(self, scores):
    found = advantages(
        [rollout(f'r{i}', score) for i, score in enumerate(scores)]
    )
    self.assertLen(found, len(scores))
    for values in found.values():
      np.testing.assert_array_equal(values, 0.0)
    self.assertNotEqual(group_figures.kind(scores, std_floor=1e-6), 'mixed')

  def test_K17_a_group_of_one_is_incomplete(self):
    for estimator in groups.ESTIMATORS:
      admitted = admit([rollout('a', 1.0)], estimator)
      self.assertEmpty(admitted.admitted)
      self.assertEqual(
          admitted.discard_counts, {term.DiscardReason.GROUP_INCOMPLETE: 1}
      )

  def test_K17_one_outlier_in_eight(self):
    # Population deviation of seven 0.35 and one 0.95: 0.1984313483.
    found = advantages(
        [rollout(f'r{i}', 0.35) for i in range(7)] + [rollout('r7', 0.95)]
    )
    np.testing.assert_allclose(found['r0'], [-0.3779644730] * 2, rtol=1e-6)
    np.testing.assert_allclose(found['r7'], [2.6457513111] * 2, rtol=1e-6)

  @parameterized.parameters('fault', 'nan', 'inf', 'null')
  def test_K35_not_scored_is_not_zero(self, kind):
    failed = {
        'fault': rollout('c', None),
        'nan': rollout('c', float('nan')),
        'inf': rollout('c', float('inf')),
        'null': rollout('c', None),
    }[kind]
    reason = term.DiscardReason.REWARD_MISSING
    if kind == 'fault':
      (segment,) = failed.segments
      failed = dataclasses.replace(
          failed,
          termination=term.Termination.INFRA_FAILURE,
          fault_cause=term.FaultCause.VERIFIER,
          segments=(dataclasses.replace(segment, end_kind='infra_failure'),),
      )
      reason = term.DiscardReason.INFRA_FAILURE
    rollouts = [
        rollout('a', 1.0), rollout('b', 0.0), failed, rollout('d', 0.0)
    ]
    # Mean 1/3 over three, as in K09; the failed one trains nothing.
    found = advantages(rollouts)
    self.assertEqual(list(found), ['a', 'b', 'd'])
    np.testing.assert_allclose(found['a'], [1.4142135624] * 2, rtol=1e-6)
    np.testing.assert_allclose(found['b'], [-0.7071067812] * 2, rtol=1e-6)
    admitted = admit(rollouts)
    self.assertEqual(admitted.discard_counts, {reason: 1})
    figures = summary.reward_figures(admitted.judged, admitted.discarded)
    self.assertAlmostEqual(figures['reward/raw'], 1 / 3)

  def test_K35_one_valid_run_is_incomplete(self):
    admitted = admit([rollout('a', 1.0), rollout('b', float('nan'))])
    self.assertEmpty(admitted.admitted)
    self.assertEqual(
        admitted.discard_counts,
        {
            term.DiscardReason.GROUP_INCOMPLETE: 1,
            term.DiscardReason.REWARD_MISSING: 1,
        },
    )

  def test_E2_outcome_only_leaves_step_rewards_out(self):
    def scored(name, score, step):
      return group_cases.member(name, [group_cases.Turn(2, step)], score)

    # Returns 1 + 0 and 0 + 3: b is ahead with the steps, a without.
    rollouts = [scored('a', 1.0, 0.0), scored('b', 0.0, 3.0)]
    self.assertEqual(advantages(rollouts)['b'], [1.0, 1.0])
    self.assertEqual(advantages(rollouts, outcome_only=True)['b'], [-1.0, -1.0])

  def test_E4_dr_grpo_and_rloo_of_a_batch(self):
    # Mean 1/4: 3/4 and -1/4; times 4/3 for rloo: 1 and -1/3.
    rollouts = [rollout(n, s) for n, s in zip('abcd', (1.0, 0.0, 0.0, 0.0))]
    found = advantages(rollouts, 'dr_grpo')
    np.testing.assert_allclose(
        found['a'] + found['b'], [0.75] * 2 + [-0.25] * 2
    )
    found = advantages(rollouts, 'rloo')
    np.testing.assert_allclose(
        found['a'] + found['b'], [1.0] * 2 + [-1 / 3] * 2, rtol=1e-6
    )

  def test_E3_eps_is_added_to_the_deviation(self):
    # Mean 1/2, deviation 1/2, eps 1/2: 0.5 / 1.
    found = advantages([rollout('a', 1.0), rollout('b', 0.0)], eps=0.5)
    self.assertEqual(found, {'a': [0.5, 0.5], 'b': [-0.5, -0.5]})


class PartitionTest(absltest.TestCase):

  def test_E7_a_group_below_two_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'group.min_size.*got 1'):
      groups.partition([], min_size=1)

  def test_unknown_settings_are_refused(self):
    with self.assertRaisesRegex(ValueError, "on_mismatch.*'merge'"):
      groups.partition([], min_size=2, on_mismatch='merge')
    with self.assertRaisesRegex(ValueError, "estimator.*'ppo'"):
      groups.compare(
          {'a': 1.0}, [('a',)], estimator='ppo', eps=0.0, std_floor=0.0
      )

  def test_E7_two_conditions_are_a_mismatch(self):
    members = [groups.Member(i, key, 'g') for i, key in zip('abcd', 'xyxy')]
    parts = groups.partition(members, min_size=2)
    self.assertEqual(parts.subgroups, (('a', 'c'), ('b', 'd')))
    self.assertEqual((parts.incomplete, parts.num_keys), ((), 2))
    parts = groups.partition(members, min_size=2, on_mismatch='drop')
    self.assertEqual(parts.subgroups, ())
    self.assertEqual(parts.incomplete, ('a', 'c', 'b', 'd'))
    with self.assertRaisesRegex(ValueError, '2 different'):
      groups.partition(members, min_size=2, on_mismatch='error')

  def test_E7_a_larger_minimum_excludes_a_pair(self):
    members = [groups.Member(i, 'k', 'g') for i in 'ab']
    parts = groups.partition(members, min_size=3)
    self.assertEqual(parts.incomplete, ('a', 'b'))

  def test_E4_rloo_needs_two(self):
    with self.assertRaisesRegex(ValueError, 'at least 2'):
      groups.rloo([1.0])


if __name__ == '__main__':
  absltest.main()
