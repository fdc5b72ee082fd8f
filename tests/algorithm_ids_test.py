"""Every id of rl_tpu/ALGORITHMS.md is named by a test, or waits with a reason.

Whoever writes the first test of an id takes it out of PENDING.
"""

import pathlib
import re

from absl.testing import absltest

from rl_tpu.config import fields
from rl_tpu.config import schema
from tests import algorithm_ids

_REPORT = 'waits for comparisons and reports'
_SAFETY = 'waits for safety figures and probes'
_SELECTION = 'waits for selection by independent environments'

# An id without a test -> why.
PENDING = {
    'A0': _REPORT,
    'A1': _REPORT,
    'A2': _REPORT,
    'A7': _SAFETY,
    'A8': _SAFETY,
    'A9': _SELECTION,
    'A10': _REPORT,
    'A11': _SELECTION,
    'A12': _SELECTION,
    'A13': _REPORT,
    'A14': _REPORT,
    'D3': 'waits for tasks on files',
    'D6': 'waits for environments that cannot be reset',
}

# Settings that the reference names and the schema does not have yet.
PENDING_SETTINGS = frozenset()

# What looks like a setting in the reference and is none.
_NO_SETTING = re.compile(r'.*\.(py|md)|joschu\.net.*|advantages\.callable.*')


def settings(config: type, prefix: str = '') -> set[str]:
  """Paths of all settings and sections, as the command line writes them."""
  found = set()
  for name, annotation in fields.annotations(config).items():
    path = prefix + fields.shown(name)
    found.add(path)
    section = fields.section_type(annotation)
    if section is not None:
      found |= settings(section, f'{path}.')
  return found


class ReferenceTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.text = algorithm_ids.REFERENCE.read_text('utf-8')
    sections = algorithm_ids.index(self.text)
    self.ids = [id_ for ids in sections.values() for id_ in ids]

  def test_the_index_has_142_ids_and_each_is_defined_once(self):
    self.assertLen(self.ids, 142)
    self.assertLen(set(self.ids), 142)
    self.assertIn('Total: 142.', self.text)
    self.assertCountEqual(algorithm_ids.definitions(self.text), self.ids)

  def test_ids_that_are_referred_to_exist(self):
    named = set(re.findall(r'\b[VRTGPLECOAD]\d+\b', self.text))
    self.assertEqual(named - set(self.ids), set())

  def test_settings_exist_or_are_marked(self):
    known = settings(schema.ExperimentConfig) | PENDING_SETTINGS
    missing = []
    pattern = r'`([a-z_]+(?:\.[a-z_]+)+)(?: = [^`]*)?`(\s\(not\sbuilt\syet)?'
    for name, marked in re.findall(pattern, self.text):
      if _NO_SETTING.fullmatch(name):
        continue
      if bool(marked) == (name in known):
        missing.append(name)
    self.assertEqual(
        missing,
        [],
        'Not in the schema and not marked `(not built yet)`, or marked although'
        ' the schema has it: correct rl_tpu/ALGORITHMS.md.',
    )
    built = PENDING_SETTINGS & settings(schema.ExperimentConfig)
    self.assertEqual(built, set(), 'Take these out of PENDING_SETTINGS.')

  def test_it_stands_alone(self):
    self.assertTrue(self.text.isascii())
    for word in ('[S1', '[S2', 'shared/', 'golden', '(guess)', '(default)]'):
      self.assertNotIn(word, self.text)


class TestsOfIdsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    text = algorithm_ids.REFERENCE.read_text('utf-8')
    sections = algorithm_ids.index(text)
    self.ids = {id_ for ids in sections.values() for id_ in ids}
    self.tests = algorithm_ids.all_tests()

  def test_every_id_is_named_by_a_test_or_pending(self):
    untested = self.ids - set(self.tests) - set(PENDING)
    self.assertEqual(
        sorted(untested), [], 'Name these ids in the tests that prove them.'
    )

  def test_pending_shrinks(self):
    tested = sorted(set(PENDING) & set(self.tests))
    self.assertEqual(
        tested, [], 'Tests name these now: take the ids out of PENDING.'
    )
    self.assertEqual(set(PENDING) - self.ids, set())
    self.assertTrue(all(PENDING.values()))


_SOURCE = '''
"""G1 in a docstring."""
# G2 in a comment


class G3Test:

  def test_G4_G15_in_a_name(self):
    """G5"""

  @parameterized.named_parameters(
      ('G6_case', 1), {'testcase_name': 'T7_case', 'value': 2}, dict(a=3)
  )
  def test_L8_cases(self, value):
    pass

  def test_K09_XG10_are_no_ids(self):
    def test_helper_C3():
      pass

  def G11_is_no_test(self):
    pass
'''


class ScanTest(absltest.TestCase):

  def test_names_count_and_comments_do_not(self):
    path = self.create_tempfile('some_test.py', _SOURCE).full_path
    found = algorithm_ids.tests_by_id([pathlib.Path(path)])
    self.assertEqual(
        set(found), {'G4', 'G15', 'G6', 'T7', 'L8', 'K09'}
    )
    self.assertLen(found['L8'], 1)

  def test_an_index_that_does_not_add_up_is_refused(self):
    text = '## Index of ids\n\n| section | ids | n |\n| 0 | V0, V1 | 3 |\n'
    with self.assertRaisesRegex(ValueError, 'section 0 counts 3'):
      algorithm_ids.index(text)


if __name__ == '__main__':
  absltest.main()
