"""G17, E1, E5, E6, L17: the stage from estimates to the actor's advantages."""

import types

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import normalise
from rl_tpu.assembly import run
from rl_tpu.config import schema
from rl_tpu.metrics import phases
from rl_tpu.types import batch as batch_lib
from tests import group_cases

# Rollouts 0 and 1 of one task, and padding; the third token is no action.
MASK_BT = np.asarray([[True, True, False, True, False]])
ROLLOUT_BT = np.asarray([[0, 0, 0, 1, -1]], np.int32)


def stage(estimator: str, norm: str, running=None):
  """Runs the stage; returns advantages and running statistics."""
  fields = dict.fromkeys(batch_lib.Joins._fields)
  fields |= {
      'policy_mask_BT': MASK_BT,
      'rollout_BT': ROLLOUT_BT,
      'source_R': np.zeros(2, np.int32),
  }
  batch = types.SimpleNamespace(
      segments=batch_lib.SegmentBatch(None, batch_lib.Joins(**fields)),
      sources=('sums',),
      return_R=np.asarray([3.0, 1.0]),
      score_R=np.asarray([1.0, 1.0]),
      subgroup_R=np.asarray([0, 0]),
  )
  estimates = types.SimpleNamespace(
      advantage_BT=np.asarray([[1.0, 3.0, np.nan, 5.0, np.nan]], np.float32)
  )
  self = types.SimpleNamespace(
      clock=phases.PhaseClock(),
      config=schema.ExperimentConfig(
          'test',
          advantage=schema.AdvantageConfig(
              estimator=estimator, norm=norm, eps=0.0, min_count=2
          ),
          group=schema.GroupConfig(size=2),
      ),
      running=running or {},
  )
  scored = types.SimpleNamespace(estimates=estimates)
  return run.TrainingRun.normalise(self, batch, scored)[0], self.running


def steps(estimator: str, **changes):
  """Packs and estimates two members of a group; advantages by rollout."""
  turn = group_cases.Turn
  config = schema.ExperimentConfig(
      'test',
      batching=schema.BatchingConfig(row_length=16, rows_per_microbatch=2),
      advantage=schema.AdvantageConfig(estimator=estimator),
      group=schema.GroupConfig(size=2),
      **changes,
  )
  rollouts = [
      group_cases.member(
          'a', [turn(1, 0.0, 's'), turn(1, 1.0, 'ta')], 1.0, cuts=[1]
      ),
      group_cases.member('b', [turn(1, 0.0, 's'), turn(1, 0.0, 'tb')], 0.0),
  ]
  self = types.SimpleNamespace(
      clock=phases.PhaseClock(), config=config, running={}, version=0
  )
  admitted = group_cases.admit(rollouts, estimator, group=config.group)
  batch = run.TrainingRun.pack(self, admitted)
  estimates = types.SimpleNamespace(
      advantage_BT=np.full(batch.time_BT.shape, np.nan, np.float32)
  )
  array_BT = run.TrainingRun.normalise(
      self, batch, types.SimpleNamespace(estimates=estimates)
  )
  return {
      r.rollout_id: [
          float(value)
          for segment, part in zip(r.segments, parts)
          for value in part[segment.is_action]
      ]
      for r, parts in zip(batch.rollouts, batch.unpack(array_BT))
  }


class AdvantageStageTest(parameterized.TestCase):

  def test_G17_none(self):
    found, running = stage('gae', 'none')
    np.testing.assert_array_equal(found, [1.0, 3.0, 0.0, 5.0, 0.0])
    self.assertEmpty(running)

  def test_G17_source_carries_its_statistics(self):
    # 1, 3, 5: mean 3, squares 4 + 0 + 4, deviation sqrt(8 / 3).
    found, running = stage('gae', 'source')
    np.testing.assert_allclose(
        found, [-1.2247449, 0.0, 0.0, 1.2247449, 0.0], atol=1e-6
    )
    self.assertEqual(running, {'sums': normalise.Statistics(3, 3.0, 8.0)})
    _, running = stage('gae', 'source', running)
    self.assertEqual(running['sums'].count, 6)

  def test_E1_a_group_estimator_replaces_the_estimates(self):
    # Returns 3 and 1: mean 2, deviation 1.
    found, _ = stage('grpo', 'none')
    np.testing.assert_array_equal(found, [1.0, 1.0, 0.0, -1.0, 0.0])

  def test_G17_norm_applies_to_group_estimators_too(self):
    # Tokens 1, 1, -1: mean 1/3, deviation sqrt(8)/3.
    found, _ = stage('dr_grpo', 'batch')
    np.testing.assert_allclose(
        found, [0.70710678, 0.70710678, 0.0, -1.41421356, 0.0], rtol=1e-6
    )

  def test_E6_gigpo_takes_its_settings_from_the_run(self):
    # Returns 2 and 0: episodes +-1. State s, from which the step returns are
    # 1 and 0 at gamma 0.5: +-1 again, by omega 2. The other states are the
    # runs' own.
    gigpo = schema.GigpoConfig(gamma=0.5, omega=2.0)
    self.assertEqual(
        steps('gigpo', gigpo=gigpo), {'a': [3.0, 1.0], 'b': [-3.0, -1.0]}
    )
    # By observation a's second window, which opens on the same one token,
    # looks like both first turns: 1, 2 and 0, deviation sqrt(2/3).
    gigpo = schema.GigpoConfig(gamma=0.5, omega=2.0, anchor='observation')
    found = steps('gigpo', gigpo=gigpo)
    step = 1.2247448714
    np.testing.assert_allclose(found['a'], [1.0, 1.0 + 2 * step], rtol=1e-6)
    np.testing.assert_allclose(found['b'], [-1.0 - 2 * step, -1.0], rtol=1e-6)

  def test_E5_process_supervision_of_a_run(self):
    # Steps 0, 1, 0, 0: mean 1/4, deviation sqrt(3)/4.
    found = steps('process')
    low, high = -0.5773502692, 1.7320508076
    np.testing.assert_allclose(found['a'], [low + high, high], rtol=1e-6)
    np.testing.assert_allclose(found['b'], [2 * low, low], rtol=1e-6)


if __name__ == '__main__':
  absltest.main()
