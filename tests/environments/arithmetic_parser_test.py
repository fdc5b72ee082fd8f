"""L19: the parts of replies in the arithmetic environment."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import arithmetic_parser
from rl_tpu.environments import arithmetic_tools

# One letter a character: n tool name, v value, - structure, t text.
LETTERS = {'tool_name': 'n', 'arg_value': 'v', 'structure': '-'}


def shown(text: str) -> str:
  out = ['t'] * len(text)
  for start, stop, name in arithmetic_parser.parts(text):
    out[start:stop] = LETTERS[name] * (stop - start)
  return ''.join(out)


class ArithmeticParserTest(parameterized.TestCase):

  @parameterized.parameters(
      (' calc(34 + 25)\n', '-nnnn-vvvvvvv--'),
      (' calc()\n', '-nnnn---'),
      (' answer -7\n', '-nnnnnn-vv-'),
      (' 59 91 7\n', '-vv-vv-v-'),
      (' answer 07\n', 'ttttttttttt'),
      (' calc(1 + 2', 'ttttttttttt'),
      ('calc(1)\n', 'tttttttt'),
      ('\n', 't'),
      ('', ''),
  )
  def test_L19_parts_of_a_reply(self, text, letters):
    self.assertEqual(shown(text), letters)

  def test_L19_the_environment_names_its_parser(self):
    spec = arithmetic_tools.ArithmeticTools().spec
    self.assertIs(spec.parse_reply, arithmetic_parser.parts)


if __name__ == '__main__':
  absltest.main()
