"""G31, K06, K07, T9: the plain callable on public cases and on our path."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import callable as callable_lib
from rl_tpu.config import schema
from rl_tpu.types import termination as term
from tests import batch_cases
from tests import golden_io

NO = [False, False, False]
CUT = {
    'rewards': [0.0, 0.0, 1.0],
    'values': [0.5, 0.6, 0.7],
    'terminated': NO,
    'truncated': [False, False, True],
    'gamma': 0.9,
    'trace_decay': 0.8,
}


def rollout(termination: str, rewards, values, final_value):
  """One segment of context and actions: the record and its values."""
  count = len(rewards)
  golden = {
      'rollout_id': 'r0',
      'task_id': 't0',
      'group_id': None,
      'source': 's',
      'termination': termination,
      'abort_cause': None,
      'terminal_reward': 0.0,
      'budgets': {'budget_visible': False, 'holds_at_eval': False},
      'num_segments': 1,
      'segments': [{
          'segment_index': 0,
          'role': 'C' + 'A' * count,
          'turn_id': [-1] + [0] * count,
          'reward': [0.0, *rewards],
          'cut': None,
          'global_token_offset': 0,
          'action_offset': 0,
          'turn_offset': 0,
          'policy_version': 0,
      }],
  }
  values = {('r0', 0): ([np.nan, *values], final_value)}
  return golden_io.rollout(golden), values


class CallableCasesTest(parameterized.TestCase):

  def test_K06_a_terminal_end(self):
    # 1 - .7 = .3; .9*.7 - .6 + .72*.3 = .246; .9*.6 - .5 + .72*.246.
    got = callable_lib.gae(
        CUT['rewards'], CUT['values'], [0.6, 0.7, np.nan],
        [False, False, True], NO, 0.9, 0.8,
    )
    np.testing.assert_allclose(got, [0.21712, 0.246, 0.3], rtol=1e-12)
    np.testing.assert_allclose(
        np.add(got, CUT['values']), [0.71712, 0.846, 1.0], rtol=1e-12
    )

  def test_K06_c_a_cut_sets_neither_flag_and_the_trace_crosses_it(self):
    # Residual at the cut: 0 + .9 * .8 - .6 = .12.
    got = callable_lib.gae(
        [0, 0, 0, 1], [0.5, 0.6, 0.8, 0.7], [0.6, 0.8, 0.7, 0.0],
        [False, False, False, True], [False] * 4, 0.9, 0.8,
    )
    np.testing.assert_allclose(
        got, [0.1502464, 0.15312, 0.046, 0.3], rtol=1e-12
    )

  def test_K07_value_of_the_state_reached_not_of_the_reset(self):
    got = callable_lib.gae(**CUT, next_values=[0.6, 0.7, 0.4])
    np.testing.assert_allclose(got, [0.403744, 0.5052, 0.66], rtol=1e-12)
    # What the fault looks like: the first state of the next task is worth .05.
    fault = callable_lib.gae(**CUT, next_values=[0.6, 0.7, 0.05])
    np.testing.assert_allclose(fault, [0.240448, 0.2784, 0.345], rtol=1e-12)

  @parameterized.parameters(None, float('nan'))
  def test_K07_a_state_that_is_not_known_is_refused(self, unknown):
    with self.assertRaisesRegex(ValueError, r'next_values\[2\] is not known'):
      callable_lib.gae(**CUT, next_values=[0.6, 0.7, unknown])

  def test_a_later_rollout_on_the_same_axis_leaks_nothing_back(self):
    # (a) and (b) of K06 one after the other give their own numbers.
    got = callable_lib.gae(
        [0, 0, 1] * 2, [0.5, 0.6, 0.7] * 2, [0.6, 0.7, 9.0, 0.6, 0.7, 0.4],
        [False, False, True, False, False, False],
        [False] * 5 + [True], 0.9, 0.8,
    )
    np.testing.assert_allclose(
        got, [0.21712, 0.246, 0.3, 0.403744, 0.5052, 0.66], rtol=1e-12
    )

  def test_T9_terminated_and_truncated_is_terminated(self):
    both = {**CUT, 'terminated': [False, False, True]}
    got = callable_lib.gae(**both, next_values=[0.6, 0.7, 0.4])
    np.testing.assert_allclose(got, [0.21712, 0.246, 0.3], rtol=1e-12)

  @parameterized.parameters('policy_stop', 'budget_truncation')
  def test_G31_the_trainers_path_agrees(self, kind):
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=(2, 9))
    record, table = rollout(kind, rewards.tolist(), values.tolist(), 0.25)
    outcome = batch_cases.run(
        [record],
        table,
        gae=schema.GaeConfig(
            gamma=0.9, lambda_policy=schema.LambdaConfig(fixed=0.8)
        ),
        rules=term.TerminationRules(budget_truncation='bootstrap'),
    )
    is_end = np.arange(9) == 8
    got = callable_lib.gae(
        rewards,
        values,
        np.append(values[1:], 0.25),
        is_end & (kind == 'policy_stop'),
        is_end & (kind == 'budget_truncation'),
        0.9,
        0.8,
    )
    golden_io.assert_close(
        outcome.actions(outcome.estimates.advantage_BT)['r0'], got
    )


if __name__ == '__main__':
  absltest.main()
