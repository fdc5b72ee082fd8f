"""The calculator takes numbers and + - * and nothing else."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import calculator


class CalculatorTest(parameterized.TestCase):

  @parameterized.parameters(
      ('34 + 25', 59),
      ('42 - 35 * 73', 42 - 2555),  # Not (42 - 35) * 73 = 511.
      ('2 * 3 * 4 - 5 * 6 + 7', 24 - 30 + 7),
      ('5 - 6 - 7', -8),
      ('-5 + 3', -2),
      ('  7*8 ', 56),
      ('007', 7),
      ('0 * 5', 0),
  )
  def test_values_follow_normal_precedence(self, expression, value):
    self.assertEqual(calculator.calculate(expression), value)

  @parameterized.parameters(
      '',
      ' ',
      '3 +',
      '* 3',
      '3 4',
      '3 + + 4',
      '3 - -4',
      '2 ** 3',
      '2 ** 9 ** 9',
      '6 / 3',
      '(1 + 2)',
      '1.5 + 2',
      '1e5',
      '1_000',
      '0x10',
      'x + 1',
      '__import__',
      '1 + 2\n',
      '1\t+ 2',
      '\u0663 + 1',  # A digit of another script.
      '1234567',
  )
  def test_anything_else_is_refused(self, expression):
    self.assertIsNone(calculator.calculate(expression))

  def test_length_is_bounded(self):
    longest = '1' + '+1' * 11 + ' '
    self.assertLen(longest, calculator.MAX_LENGTH)
    self.assertEqual(calculator.calculate(longest), 12)
    self.assertIsNone(calculator.calculate(longest + ' '))

  def test_a_result_that_no_window_was_made_for_is_refused(self):
    self.assertEqual(calculator.calculate('9999 * 9999'), 99980001)
    self.assertIsNone(calculator.calculate('99999 * 9999'))
    self.assertIsNone(calculator.calculate('0 - 9999 * 9999'))


if __name__ == '__main__':
  absltest.main()
