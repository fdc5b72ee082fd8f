"""The plain callable against the golden file (G31, T9)."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import callable as callable_lib
from tests import golden_io


class CallableTest(parameterized.TestCase):

  @parameterized.named_parameters(*golden_io.named('gae_callable'))
  def test_G31_golden(self, golden):
    got = callable_lib.gae(**golden['input'])
    np.testing.assert_allclose(
        got, golden['expected']['advantages'], rtol=1e-12, atol=1e-12
    )

  @parameterized.parameters('0.5', '1.0')
  def test_numbers_of_the_seed(self, trace_decay):
    (case,) = [
        c for c in golden_io.cases('seed_worked') if 'values' in c['input']
    ]
    values = case['input']['values']
    got = callable_lib.gae(
        case['input']['rewards'],
        values,
        [*values[1:], 123.0],
        [False, False, True],
        [False] * 3,
        case['input']['gamma'],
        float(trace_decay),
    )
    np.testing.assert_allclose(
        got, case['expected'][trace_decay]['advantage'], atol=1e-12
    )

  def test_T9_terminated_wins_over_truncated(self):
    got = callable_lib.gae([1.0], [0.5], [np.nan], [True], [True], 0.9, 0.9)
    np.testing.assert_allclose(got, [0.5])

  def test_G31_a_truncation_bootstraps_from_the_state_it_reached(self):
    # K06 (b): 0 + .9 * .4 - .7 + 1 = .66 at the end.
    got = callable_lib.gae(
        [0, 0, 1], [0.5, 0.6, 0.7], [0.6, 0.7, 0.4],
        [False] * 3, [False, False, True], 0.9, 0.8,
    )
    np.testing.assert_allclose(got, [0.403744, 0.5052, 0.66], atol=1e-12)

  def test_unequal_lengths_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'equal length'):
      callable_lib.gae([0.0], [0.0, 1.0], [0.0], [True], [False], 1.0, 1.0)

  def test_no_steps(self):
    self.assertEmpty(callable_lib.gae([], [], [], [], [], 1.0, 1.0))


if __name__ == '__main__':
  absltest.main()
