"""K02: a final number, whatever stands around it."""

import fractions

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.verifiers import numeric


class NumericAnswerTest(parameterized.TestCase):

  def score(self, answer, reply, **settings):
    found = numeric.NumericAnswer(**settings).score(
        {'answer': answer, 'reply': reply}
    )
    self.assertEqual(found.solved, found.value == 1.0)
    self.assertEqual(found.components['right'], found.value)
    return found.value, found.components['answered']

  @parameterized.parameters(
      '#### 1200', 'so\n#### 1,200', '#### $1,200', '####1200.00',
      '#### 1200 dollars.', '#### +1200<|im_end|>',
      '#### \u20ac1,200.0 a month',
      '#### 1200\nThat is all 3 of us.', '#### 5\nno:\n#### 1200',
      '#### 2400/2', '<think>#### 7</think>\n#### 1200', '####\n1200',
      '#### **1200**', '#### \\boxed{1200}', '#### 1200 m2', '#### 1200,',
  )
  def test_right(self, reply):
    answer = 'She has 2 * 600 = <<2*600=1200>>1200.\n#### 1,200'
    self.assertEqual(self.score(answer, reply), (1.0, 1.0))
    self.assertEqual(self.score('1200', reply), (1.0, 1.0))

  @parameterized.parameters(
      ('#### 1201', 1.0), ('#### -1200', 1.0), ('#### 12,00', 0.0),
      ('#### 1200 or 1300', 0.0), ('#### 1200-1300', 0.0), ('#### 1.2e4', 1.0),
      ('#### 1200 #### 7', 1.0), ('#### 1200\n#### none', 0.0),
      ('1200', 0.0), ('', 0.0), ('####', 0.0), ('#### twelve hundred', 0.0),
      ('#### 1200/0', 0.0), ('#### 0.0012', 1.0), ('#### x1200', 0.0),
      ('#### 1200 <think>#### 1200', 1.0), ('<think>#### 1200', 0.0),
      ('#### ' + '0' * 90 + '1200', 0.0), ('#### 1e999999999999', 0.0),
      ('#### 1200.1200', 1.0), ('#### --1200', 0.0), ('### 1200', 0.0),
  )
  def test_wrong(self, reply, answered):
    expected = float(reply == '#### 1200 <think>#### 1200')
    self.assertEqual(self.score('#### 1200', reply), (expected, answered))

  @parameterized.parameters(
      ('1e-05', '#### 0.00001'), ('1e+16', '#### 10000000000000000'),
      ('1000', '#### 1e3'), ('1000', '#### 1E3'), ('3', '#### 3.0e0'),
      ('1200', '#### 1.2e3'), ('0.5', '#### 5e-1'),
  )
  def test_K50_a_number_may_have_an_exponent(self, answer, reply):
    self.assertEqual(self.score(answer, reply), (1.0, 1.0))

  def test_K50_an_answer_that_cannot_be_read_is_a_fault_of_the_task(self):
    verifier = numeric.NumericAnswer()
    verifier.check_payload({'answer': '#### 1e-05'})
    for answer in ('twelve', '3 or 4', 7, ''):
      with self.assertRaisesRegex(ValueError, 'answer'):
        verifier.check_payload({'answer': answer})

  @parameterized.parameters(
      ('-3', '#### \u22123', 1.0), ('-3', '#### -$3', 1.0),
      ('-3', '#### $-3', 1.0), ('-3', '#### 3', 0.0),
      ('0.5', '#### .50', 1.0), ('0.5', '#### 1/2', 1.0),
      ('50%', '#### 50', 1.0), ('1/3', '#### 2/6', 1.0),
      ('0.333', '#### 1/3', 0.0),
      # Exact: as floats the two are equal.
      ('9007199254740993', '#### 9007199254740992', 0.0),
  )
  def test_values(self, answer, reply, expected):
    self.assertEqual(self.score(answer, reply)[0], expected)

  @parameterized.parameters(
      ('so 16-3=13', 1.0), ('13 apples', 1.0), ('13, not 12', 0.0),
      ('12 and 13.', 1.0), ('nothing', 0.0), ('#### 12\nI mean 13', 0.0),
      ('<think>13', 0.0),
  )
  def test_the_last_number_where_it_may_stand_alone(self, reply, expected):
    self.assertEqual(self.score('13', reply, last_number=True)[0], expected)
    self.assertEqual(self.score('13', reply)[0], 0.0)

  def test_an_answer_without_a_number_is_a_fault_and_no_zero(self):
    for answer in ('', 'many', '3 or 4', 'x\n#### '):
      with self.assertRaisesRegex(ValueError, 'not one number'):
        self.score(answer, '#### 3')

  def test_the_version_names_the_settings(self):
    versions = {numeric.NumericAnswer(last_number=k).version for k in (0, 1)}
    self.assertLen(versions, 2)

  def test_numbers_in_a_text(self):
    found = numeric.numbers_in('2 of 1,000 are -.5; 7,50 and 1/4, v2.5 no')
    self.assertEqual(
        found,
        [2, 1000, fractions.Fraction(-1, 2), None, fractions.Fraction(1, 4)],
    )


if __name__ == '__main__':
  absltest.main()
