"""The 42 public bug reports K01 to K42: each is a test, or waits for a part."""

import re

from absl.testing import absltest

from tests import algorithm_ids

NUMBER = 42
# A case without a test -> what it waits for.
PENDING = {31: 'runs of several processes'}


class CasesTest(absltest.TestCase):

  def test_every_case_is_named_by_a_test_or_waits(self):
    named = set()
    for path in algorithm_ids.ROOT.rglob('*_test.py'):
      for name in algorithm_ids.names(path.read_text('utf-8')):
        # K18c is part c of case 18.
        found = re.findall(r'(?:_|/)K(\d\d)[a-z]?(?=_|$|/)', name)
        named |= {int(number) for number in found}
    self.assertEqual(set(range(1, NUMBER + 1)) - named, set(PENDING))


if __name__ == '__main__':
  absltest.main()
