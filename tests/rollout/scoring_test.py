"""D1, D2, R9: rewards from the record to what is trained on."""

import dataclasses

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.rewards import scaling
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import scoring
from rl_tpu.types import termination as term
from tests import golden_io
from tests import synthetic

WEIGHTS = {'terminal': 2.0, 'step': 1.0, 'format': 0.5}


def rollout(
    name='a', *, source='s', score=1.0, solved=True, kind='success', **changes
) -> records.Rollout:
  """Step reward 3 and format reward -4 in two segments."""
  made = golden_io.rollout(
      synthetic.rollout(
          ['CAAO', 'CAA'],
          rollout_id=name,
          termination=kind,
          terminal_reward=score,
          rewards=[[0.0, 0.0, 3.0, 0.0], [0.0, -2.0, 0.0]],
          source=source,
      )
  )
  fields = {
      # -2 at (1, 1) is 0.5 * -4.
      'reward_components': {'step': [(0, 2, 3.0)], 'format': [(1, 1, -4.0)]},
      'solved': solved,
      **changes,
  }
  return dataclasses.replace(made, **fields)


def pack(rollouts, *, scales=None, **settings) -> batching.Batch:
  reward = schema.RewardConfig(weights=WEIGHTS, **settings)
  admitted = admission.admit(
      rollouts,
      termination=term.TerminationRules(),
      data=schema.DataConfig(),
      reward=reward,
      row_length=16,
      scales=scales,
  )
  assert not admitted.discards, admitted.discards
  return batching.build(
      admitted,
      batching=schema.BatchingConfig(row_length=16, rows_per_microbatch=2),
      gae=schema.GaeConfig(),
      critic=schema.CriticConfig(),
      loss=schema.LossConfig(),
      compaction=schema.CompactionConfig(),
  )


def rewards(batch: batching.Batch) -> dict[str, list[float]]:
  """Reward of every action, as the recursion reads it."""
  unpacked = batch.unpack(batch.segments.joins.reward_BT)
  return {
      r.rollout_id: np.concatenate(
          [part[s.is_action] for s, part in zip(r.segments, parts)]
      ).tolist()
      for r, parts in zip(batch.rollouts, unpacked)
  }


class WeightedTest(absltest.TestCase):

  def test_D2_the_sum_of_weight_times_component(self):
    batch = pack([rollout()])
    self.assertEqual(rewards(batch), {'a': [0.0, 3.0, -2.0, 2.0]})
    self.assertEqual(batch.return_R.tolist(), [3.0])
    self.assertEqual(batch.raw_return_R.tolist(), [3.0])


class LexicographicTest(parameterized.TestCase):

  settings = {'mode': 'lexicographic', 'constrained': ('format',)}

  def test_D2_a_clean_success_has_its_format_terms(self):
    batch = pack([rollout()], **self.settings)
    self.assertEqual(rewards(batch), {'a': [0.0, 3.0, -2.0, 2.0]})

  @parameterized.named_parameters(
      ('not_solved', {'kind': 'policy_stop', 'solved': False}),
      ('unknown', {'kind': 'policy_stop', 'solved': None}),
      ('denied_action', {'safety_events': (('denied', 0, 2),)}),
  )
  def test_D2_the_others_have_not(self, changes):
    batch = pack([rollout(**changes)], **self.settings)
    self.assertEqual(rewards(batch), {'a': [0.0, 3.0, 0.0, 2.0]})
    self.assertEqual(batch.return_R.tolist(), [5.0])

  def test_D2_asking_is_no_violation(self):
    made = rollout(safety_events=(('approval_request', 0, 2),))
    batch = pack([made], **self.settings)
    self.assertEqual(rewards(batch), {'a': [0.0, 3.0, -2.0, 2.0]})

  def test_D2_stored_order_does_not_decide_where_rewards_go(self):
    made = rollout(kind='policy_stop', solved=False)
    turned = dataclasses.replace(made, segments=made.segments[::-1])
    batch = pack([turned], **self.settings)
    (parts,) = batch.unpack(batch.segments.joins.reward_BT)
    self.assertEqual([p.tolist() for p in parts],
                     [[0.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])

  def test_D2_the_record_keeps_every_component(self):
    made = rollout(kind='policy_stop', solved=False)
    batch = pack([made], **self.settings)
    self.assertIs(batch.rollouts[0], made)
    self.assertEqual(made.segments[1].reward.tolist(), [0.0, -2.0, 0.0])

  def test_D2_violations_end_a_success(self):
    self.assertTrue(scoring.succeeded(rollout()))
    self.assertFalse(
        scoring.succeeded(
            rollout(
                kind='runtime_abort',
                abort_cause=term.AbortCause.POLICY_VIOLATION,
            )
        )
    )


class ScaleTest(absltest.TestCase):

  def test_D1_affine_shifts_the_score_and_divides_everything(self):
    scales = scaling.Scales(
        schema.RewardConfig(
            weights=WEIGHTS,
            norm='affine',
            affine_scale={'golden': 4.0},
            affine_shift={'golden': -1.0},
        )
    )
    batch = pack([rollout()], scales=scales)
    # 2 * (1 + 1) / 4 at the end; steps 3 / 4 and -2 / 4 without a shift.
    self.assertEqual(rewards(batch), {'a': [0.0, 0.75, -0.5, 1.0]})
    self.assertEqual(batch.return_R.tolist(), [1.25])
    self.assertEqual(batch.score_R.tolist(), [1.0])
    # The raw return is logged apart.
    self.assertEqual(batch.raw_return_R.tolist(), [3.0])

  def test_D1_an_end_without_a_score_is_not_shifted(self):
    scales = scaling.Scales(
        schema.RewardConfig(
            weights=WEIGHTS, norm='affine', affine_shift={'golden': -1.0}
        )
    )
    batch = pack(
        [rollout(kind='budget_truncation', score=None, solved=None)],
        scales=scales,
    )
    self.assertEqual(rewards(batch), {'a': [0.0, 3.0, -2.0, 0.0]})

  def test_D1_running_scales_are_those_of_the_source(self):
    scales = scaling.Scales(schema.RewardConfig(norm='running'))
    scales.record(['s', 's'], [0.0, 4.0])
    batch = pack([rollout(), rollout('b', source='new')], scales=scales)
    self.assertEqual(
        rewards(batch),
        {'a': [0.0, 1.5, -1.0, 1.0], 'b': [0.0, 3.0, -2.0, 2.0]},
    )
    np.testing.assert_array_equal(batch.raw_return_R, [3.0, 3.0])

  def test_D1_weight_0_keeps_a_score_out_on_every_scale(self):
    scale = scaling.Scale(shift=5.0)
    found = scoring.score(
        rollout(),
        term.Verdict(True, True, term.EndMode.TERMINAL, 1.0, None),
        reward=schema.RewardConfig(
            weights={**WEIGHTS, 'terminal': 0.0},
            norm='affine',
            affine_shift={'golden': scale.shift},
        ),
        scales=scaling.Scales(
            schema.RewardConfig(norm='affine', affine_shift={'golden': 5.0})
        ),
    )
    self.assertEqual((found.score, found.raw_score), (0.0, 0.0))


  def test_T2_without_reward_settings_the_score_is_that_in_use(self):
    for used, expected in ((-1.5, -1.5), (None, 0.0)):
      found = scoring.score(
          rollout(score=-1.5),
          term.Verdict(True, True, term.EndMode.BOOTSTRAP, used, None),
          reward=None,
          scales=None,
      )
      self.assertEqual((found.score, found.raw_score), (expected, expected))
      self.assertEqual((found.scale, found.weights, found.rewards),
                       (scaling.Scale(), None, None))


class HomeTest(parameterized.TestCase):

  def reason(self, made) -> str | None:
    admitted = admission.admit(
        [made],
        termination=term.TerminationRules(),
        data=schema.DataConfig(),
        reward=schema.RewardConfig(weights=WEIGHTS),
        row_length=16,
    )
    return admitted.discards[0].detail if admitted.discards else None

  def test_R9_terminal_beside_terminal_reward(self):
    components = rollout().reward_components
    same = {**components, 'terminal': [(1, 2, 1.0)]}
    self.assertIsNone(self.reason(rollout(reward_components=same)))
    for places in ([(1, 2, 0.5)], [(0, 1, 0.5), (1, 2, 0.5)]):
      other = {**components, 'terminal': places}
      self.assertIn(
          'one home (R9)', self.reason(rollout(reward_components=other))
      )
    unscored = rollout(
        score=None, kind='budget_truncation', reward_components=same
    )
    self.assertIn('one home (R9)', self.reason(unscored))

  def test_R9_terminal_is_in_no_position(self):
    made = rollout()
    last = made.segments[1]
    reward = last.reward.copy()
    reward[2] = 2.0
    made = dataclasses.replace(
        made,
        segments=(made.segments[0], dataclasses.replace(last, reward=reward)),
        reward_components={
            **made.reward_components, 'terminal': [(1, 2, 1.0)]
        },
    )
    self.assertIn('weighted sum', self.reason(made))

  def resumed(self, places, *, token=None) -> records.Rollout:
    """Two segments, the second of which repeats the first."""
    rewards = [[0.0] * 4, [0.0] * 6]
    for segment, position in places:
      rewards[segment][position] = 1.0
    golden = synthetic.rollout(
        ['CCAA', 'CCCCAA'], rewards=rewards, terminal_reward=1.0
    )
    golden['segments'][0]['cut'] = 'resume_cut'
    made = golden_io.rollout(golden)
    if token is not None:
      changed = made.segments[1].token.copy()
      changed[token] = 99
      made = dataclasses.replace(
          made,
          segments=(
              made.segments[0],
              dataclasses.replace(
                  made.segments[1],
                  token=changed,
                  context_hash=hashes.token_hash(
                      changed[: made.segments[1].context_length]
                  ),
              ),
          ),
      )
    return made

  def test_R9_a_copied_position_carries_no_reward(self):
    self.assertIsNone(self.reason(self.resumed([(0, 3), (1, 5)])))
    self.assertIn('copies', self.reason(self.resumed([(0, 3), (1, 3)])))
    self.assertIn('copies', self.reason(self.resumed([(1, 0)])))

  def test_R9_what_differs_from_the_predecessor_is_no_copy(self):
    self.assertIsNone(self.reason(self.resumed([(1, 3)], token=2)))
    self.assertIn('copies', self.reason(self.resumed([(1, 1)], token=2)))

  def test_R9_after_a_compaction_a_new_prompt_may_be_rewarded(self):
    made = self.resumed([(1, 3)])
    first = dataclasses.replace(
        made.segments[0], end_kind='compaction_cut', cut_cause='template'
    )
    made = dataclasses.replace(made, segments=(first, made.segments[1]))
    self.assertIsNone(self.reason(made))


if __name__ == '__main__':
  absltest.main()
