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

  def test_K06_a_terminal_end(self):
    rollout = synthetic.rollout(['CAAA'], values=[[9, 0.5, 0.6, 0.7]])
    golden_io.assert_close(actions([rollout])['r0'], [0.21712, 0.246, 0.3])
    golden_io.assert_close(
        actions([rollout], 'return')['r0'], [0.71712, 0.846, 1.0]
    )

  def test_K06_b_K07_a_time_limit_bootstraps_from_the_state_reached(self):
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

  def test_K06_c_the_trace_crosses_a_cut(self):
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
  def test_K08_a_an_observation_decays_nothing(self, gap, fill):
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
  def test_K08_b_a_reward_on_an_observation_is_not_lost(self, fill):
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


if __name__ == '__main__':
  absltest.main()
