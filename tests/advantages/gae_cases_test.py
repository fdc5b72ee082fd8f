"""Public cases of cuts, ends and observations, on the trainer's path."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import golden_case
from tests import golden_io
from tests import synthetic

ALL = {'kind': 'fixed', 'value': 1.0}


def actions(rollouts, name='advantage', config=None, **options):
  case = synthetic.case(
      rollouts,
      **{
          'gamma': 0.9,
          'lambda_policy': {'kind': 'fixed', 'value': 0.8},
          'lambda_critic': {'kind': 'fixed', 'value': 0.8},
          **(config or {}),
      },
  )
  outcome = golden_case.run(case, **options)
  return outcome.actions(golden_case.columns(outcome)[name])


class CutTest(parameterized.TestCase):

  def test_G4_K06_a_terminal_end(self):
    rollout = synthetic.rollout(['CAAA'], values=[[9, 0.5, 0.6, 0.7]])
    golden_io.assert_close(actions([rollout])['r0'], [0.21712, 0.246, 0.3])
    golden_io.assert_close(
        actions([rollout], 'return')['r0'], [0.71712, 0.846, 1.0]
    )

  def test_G4_K06_b_K07_a_time_limit_bootstraps_from_the_state_reached(self):
    # The state reached is that after the trailing observation; what a reset
    # would show is in no record.
    rollout = synthetic.rollout(
        ['CAAAO'],
        values=[[9, 0.5, 0.6, 0.7, 9]],
        rewards=[[0, 0, 0, 1.0, 0]],
        termination='budget_truncation',
        terminal_reward=None,
        final_value=0.4,
    )
    golden_io.assert_close(
        actions([rollout])['r0'], [0.403744, 0.5052, 0.66]
    )
    golden_io.assert_close(
        actions([rollout], 'return')['r0'], [0.903744, 1.1052, 1.36]
    )

  def cut_rollout(self):
    return synthetic.rollout(
        ['CAA', 'CAA'], values=[[9, 0.5, 0.6], [9, 0.8, 0.7]]
    )

  def test_G2_G9_K06_c_the_trace_crosses_a_cut(self):
    rollout = self.cut_rollout()
    golden_io.assert_close(
        actions([rollout])['r0'], [0.1502464, 0.15312, 0.046, 0.3]
    )
    golden_io.assert_close(
        actions([rollout], 'return')['r0'], [0.6502464, 0.75312, 0.846, 1.0]
    )
    delta = actions([rollout], 'delta')['r0']
    self.assertAlmostEqual(float(delta[1]), 0.12, places=6)

  @parameterized.parameters(
      ('reset_trace', [0.1264, 0.12, 0.046, 0.3]),
      ('cut_terminal', [-0.392, -0.6, 0.046, 0.3]),
  )
  def test_K06_c_G20_other_treatments(self, cut, expected):
    got = actions([self.cut_rollout()], config={'chain': cut})['r0']
    golden_io.assert_close(got, expected)

  def test_K06_c_other_rollouts_between_the_segments(self):
    other = [
        synthetic.rollout(
            ['C' + 'A' * 20, 'CCAAO'],
            rollout_id=f'x{k}',
            values=[np.full(21, 7.0), np.full(5, 7.0)],
        )
        for k in range(3)
    ]
    got = actions([other[0], self.cut_rollout(), *other[1:]])
    golden_io.assert_close(got['r0'], [0.1502464, 0.15312, 0.046, 0.3])


class ObservationTest(parameterized.TestCase):

  @parameterized.product(gap=(2, 50), fill=(9.0, np.nan))
  def test_G1_K08_a_an_observation_decays_nothing(self, gap, fill):
    rollout = synthetic.rollout(
        ['CA' + 'O' * gap + 'A'],
        values=[[fill, 0.5] + [fill] * gap + [0.7]],
    )
    golden_io.assert_close(actions([rollout])['r0'], [0.346, 0.3])
    everything = {'gamma': 1.0, 'lambda_policy': ALL, 'lambda_critic': ALL}
    golden_io.assert_close(
        actions([rollout], config=everything)['r0'], [0.5, 0.3]
    )

  @parameterized.parameters(9.0, np.nan)
  def test_G5_K08_b_a_reward_on_an_observation_is_not_lost(self, fill):
    rollout = synthetic.rollout(
        ['CAAO'],
        values=[[fill, 0.5, 0.7, fill]],
        rewards=[[0, 0, 0, 1.0]],
        terminal_reward=0.0,
    )
    got = actions([rollout], config={'gamma': 0.0})['r0']
    golden_io.assert_close(got, [-0.5, 0.3])

  def test_G5_a_reward_moves_across_a_cut(self):
    rollout = synthetic.rollout(
        ['CAO', 'CCA'], rewards=[[0, 0, 0], [0, 2.0, 0]], terminal_reward=0.0
    )
    got = actions([rollout], 'reward_effective')['r0']
    np.testing.assert_array_equal(got, [2.0, 0.0])

  def test_G6_the_outcome_enters_once_at_the_last_action(self):
    rollout = synthetic.rollout(['CAA', 'CAO', 'CCAAO'], terminal_reward=0.75)
    got = actions([rollout], 'reward_effective')['r0']
    np.testing.assert_array_equal(got, [0.0, 0.0, 0.0, 0.0, 0.75])


class TransitionTest(parameterized.TestCase):
  """gamma 0.9 and lambda 0.8, so that a trace decays by 0.72."""

  def test_G3_a_segment_without_an_action_is_crossed(self):
    rollout = synthetic.rollout(
        ['CAA', 'CCO', 'CA'], values=[[9, 0.5, 0.6], [9, 9, 9], [9, 0.8]]
    )
    # delta: 0.9*0.6-0.5, 0.9*0.8-0.6, 1-0.8; A_1 = 0.12 + 0.72*0.2.
    golden_io.assert_close(
        actions([rollout], 'delta')['r0'], [0.04, 0.12, 0.2]
    )
    golden_io.assert_close(actions([rollout])['r0'], [0.23008, 0.264, 0.2])

  def test_G3_a_last_segment_without_an_action_gives_the_bootstrap(self):
    rollout = synthetic.rollout(
        ['CAA', 'CO'],
        values=[[9, 0.5, 0.6], [9, 9]],
        termination='budget_truncation',
        terminal_reward=None,
        final_value=0.4,
    )
    # delta_1 = 0.9*0.4 - 0.6; A_0 = 0.04 + 0.72*(-0.24).
    golden_io.assert_close(actions([rollout])['r0'], [-0.1328, -0.24])

  @parameterized.parameters(
      # Tokens: delta 0.04, 0.03, 0.3 at every step decayed.
      ('token', 1.0, [0.04 + 0.72 * 0.246, 0.246, 0.3]),
      # Turns: inside the first turn neither gamma nor lambda applies.
      ('turn', 1.0, [0.1 + 0.246, 0.246, 0.3]),
      # A truncation inside a turn decays all the same: 0.9*0.4 - 0.7.
      ('turn', None, [0.1 - 0.2148, 0.03 + 0.72 * -0.34, -0.34]),
  )
  def test_G10_time_in_tokens_or_in_turns(self, unit, score, expected):
    rollout = synthetic.rollout(
        ['CAAOA'],
        values=[[9, 0.5, 0.6, 9, 0.7]],
        termination='budget_truncation' if score is None else 'success',
        terminal_reward=score,
        final_value=0.4,
    )
    got = actions([rollout], config={'time_unit': unit})['r0']
    golden_io.assert_close(got, expected)

  @parameterized.parameters(
      ('resume_cut', 0, [0.7 - 0.5 + 0.3, 0.3]),
      ('compaction_cut', 1, [0.9 * 0.7 - 0.5 + 0.72 * 0.3, 0.3]),
  )
  def test_G10_turn_ids_and_not_cuts_end_a_turn(self, cut, turn, expected):
    rollout = synthetic.rollout(['CA', 'CCA'], values=[[9, 0.5], [9, 9, 0.7]])
    first, second = rollout['segments']
    first['cut'] = cut
    second['turn_id'] = [-1, -1, turn]
    rollout = synthetic.with_offsets(rollout)
    got = actions([rollout], config={'time_unit': 'turn'})['r0']
    golden_io.assert_close(got, expected)

  @parameterized.parameters(
      # N = 4 actions of the rollout, not 2 of each segment: lambda = 0.5, and
      # A_2 = -0.17 + 0.45*0.3, A_1 = 0.12 + 0.45*A_2, A_0 = 0.04 + 0.45*A_1.
      ('token', 0.5, [0.0869125, 0.10425, -0.035, 0.3]),
      # 1 - 1/(0.1*4) is below 0, so lambda is 0 and A = delta.
      ('token', 0.1, [0.04, 0.12, -0.17, 0.3]),
      # N = 2 turns: lambda = 0.5 between them, 1 inside.
      ('turn', 1.0, [0.1 + 0.21, 0.12 + 0.45 * 0.2, -0.1 + 0.3, 0.3]),
  )
  def test_G11_lambda_follows_the_rollout(self, unit, alpha, expected):
    rollout = synthetic.rollout(
        ['CAA', 'CAA'], values=[[9, 0.5, 0.6], [9, 0.8, 0.7]]
    )
    adaptive = {'kind': 'length_adaptive', 'alpha': alpha}
    config = {'time_unit': unit, 'lambda_policy': adaptive}
    got = actions([rollout], config=config)['r0']
    golden_io.assert_close(got, expected)
    config['lambda_critic'] = adaptive
    returns = actions([rollout], 'return', config=config)['r0']
    golden_io.assert_close(returns - got, [0.5, 0.6, 0.8, 0.7])


if __name__ == '__main__':
  absltest.main()
