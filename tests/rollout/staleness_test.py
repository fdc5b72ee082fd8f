"""Limits of age, of the wait and of KL (O2), and the gate of L10."""

import dataclasses

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import staleness
from rl_tpu.types import termination as term
from tests import golden_io
from tests import synthetic


def rollout(number: int, **changes) -> records.Rollout:
  """Five action tokens in two segments, sampled by version 3."""
  made = golden_io.rollout(
      synthetic.rollout(
          ['CAAO', 'CAAA'], rollout_id=f'r{number}', task_id=f't{number}',
          version=3,
      )
  )
  return dataclasses.replace(made, **changes)


def with_versions(made: records.Rollout, versions) -> records.Rollout:
  """The rollout with one version an action token, in time order."""
  left = list(versions)
  segments = []
  for segment in made.segments:
    version = segment.behaviour_version.copy()
    for place in np.flatnonzero(segment.is_action):
      version[place] = left.pop(0)
    segments.append(dataclasses.replace(segment, behaviour_version=version))
  return dataclasses.replace(made, segments=tuple(segments))


def admit(rollouts, limits, **options) -> admission.Admission:
  return admission.admit(
      rollouts,
      termination=term.TerminationRules(),
      data=schema.DataConfig(),
      row_length=16,
      staleness=limits,
      **options,
  )


def build(admitted, oldest, **loss) -> batching.Batch:
  return batching.build(
      admitted,
      batching=schema.BatchingConfig(row_length=16, rows_per_microbatch=1),
      gae=schema.GaeConfig(),
      critic=schema.CriticConfig(),
      loss=schema.LossConfig(**loss),
      compaction=schema.CompactionConfig(),
      oldest_version=oldest,
  )


class LimitsTest(parameterized.TestCase):

  def reasons(self, admitted) -> dict[str, tuple[str, str]]:
    return {
        d.rollout.rollout_id: (d.reason.value, d.detail)
        for d in admitted.discards
    }

  def test_O2_discards_by_the_oldest_token(self):
    made = [
        with_versions(rollout(0), [9, 9, 9, 9, 9]),
        with_versions(rollout(1), [9, 9, 7, 9, 9]),
        with_versions(rollout(2), [9, 9, 6, 9, 9]),
    ]
    limits = schema.StalenessConfig(max_version_gap=2)
    found = admit(made, limits, current_version=9)
    self.assertEqual(
        self.reasons(found), {'r2': ('stale', 'staleness.max_version_gap')}
    )

  def test_O2_discards_by_the_wait(self):
    made = [
        rollout(0, t_enqueued=10.0, t_consumed=15.0),
        rollout(1, t_enqueued=10.0, t_consumed=15.5),
    ]
    limits = schema.StalenessConfig(max_queue_seconds=5.0)
    found = admit(made, limits)
    self.assertEqual(
        self.reasons(found), {'r1': ('stale', 'staleness.max_queue_seconds')}
    )
    self.assertEqual(self.reasons(admit(made, schema.StalenessConfig())), {})

  def test_O2_discards_by_measured_kl(self):
    made = [rollout(k) for k in range(4)]
    made[3] = dataclasses.replace(made[3], terminal_reward=None)
    asked = []

    def measure(rollouts):
      asked.append([r.rollout_id for r in rollouts])
      return {'r0': 0.1, 'r1': 0.11, 'r2': float('nan')}

    limits = schema.StalenessConfig(max_kl=0.1)
    found = self.reasons(admit(made, limits, measure_kl=measure))
    self.assertEqual(found['r1'], ('stale', 'staleness.max_kl'))
    self.assertEqual(found['r2'], ('stale', 'staleness.max_kl'))
    self.assertEqual(found['r3'][0], 'reward_missing')
    self.assertNotIn('r0', found)
    # Once, and only what would be trained on.
    self.assertEqual(asked, [['r0', 'r1', 'r2']])
    admit(made, schema.StalenessConfig(), measure_kl=measure)
    self.assertLen(asked, 1)

  def test_O2_a_stale_member_breaks_its_group(self):
    made = [
        dataclasses.replace(rollout(k), group_id='g', task_id='t')
        for k in range(2)
    ]
    limits = schema.StalenessConfig(max_kl=0.1)
    found = admit(
        made,
        limits,
        estimator='grpo',
        group=schema.GroupConfig(size=2),
        measure_kl=lambda _: {'r0': 0.0, 'r1': 0.2},
    )
    self.assertEqual(self.reasons(found)['r1'][0], 'stale')
    self.assertEqual(self.reasons(found)['r0'][0], 'group_incomplete')


class MaskTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.limits = schema.StalenessConfig(max_version_gap=2, over='mask')
    self.made = [
        with_versions(rollout(0), [6, 7, 9, 6, 9]),
        with_versions(rollout(1), [9, 9, 9, 9, 9]),
    ]
    self.admitted = admit(self.made, self.limits, current_version=9)
    self.oldest = staleness.oldest_used(self.limits, 9)

  def test_O2_mask_keeps_the_rollout_and_leaves_out_its_old_tokens(self):
    self.assertLen(self.admitted.admitted, 2)
    self.assertEqual(self.oldest, 7)
    batch = build(self.admitted, self.oldest)
    weight = [np.concatenate(w) for w in batch.unpack(batch.policy_weight_BT)]
    # Ten action tokens of weight 1 / 10; two of the first rollout are of
    # version 6. L10: the denominator is still 10.
    tenth = np.float32(0.1)
    np.testing.assert_array_equal(
        weight[0], [0, 0, tenth, 0, 0, tenth, 0, tenth]
    )
    np.testing.assert_array_equal(
        weight[1], [0, tenth, tenth, 0, 0, tenth, tenth, tenth]
    )
    self.assertEqual(batch.counts['stale_tokens'], 2)
    self.assertAlmostEqual(batch.counts['stale_weight'], 0.2)

  def test_L10_the_denominator_loses_them_where_that_is_asked_for(self):
    batch = build(self.admitted, self.oldest, renormalise_gated=True)
    weight_BT = batch.policy_weight_BT
    self.assertEqual(np.unique(weight_BT).tolist(), [0, np.float32(1 / 8)])
    self.assertEqual(int((weight_BT > 0).sum()), 8)
    # What is left out has no weight to lose; the others share all of it.
    self.assertEqual(batch.counts['stale_tokens'], 2)
    self.assertEqual(batch.counts['stale_weight'], 0.0)
    self.assertAlmostEqual(batch.counts['policy_weight'], 1.0)

  def test_O2_critic_and_normalisation_use_masked_tokens(self):
    masked = build(self.admitted, self.oldest)
    whole = build(self.admitted, None)
    np.testing.assert_array_equal(
        masked.critic_weight_BT, whole.critic_weight_BT
    )
    for name, column in masked.segments.joins._asdict().items():
      np.testing.assert_array_equal(
          column, getattr(whole.segments.joins, name), name
      )
    self.assertEqual(int((whole.policy_weight_BT > 0).sum()), 10)

  def test_O2_all_tokens_too_old_train_nothing(self):
    batch = build(self.admitted, 10, renormalise_gated=True)
    self.assertEqual(float(np.abs(batch.policy_weight_BT).max()), 0.0)
    self.assertTrue(np.isfinite(batch.policy_weight_BT).all())

  def test_O2_discard_leaves_no_single_token_out(self):
    limits = schema.StalenessConfig(max_version_gap=2)
    self.assertIsNone(staleness.oldest_used(limits, 9))


if __name__ == '__main__':
  absltest.main()
