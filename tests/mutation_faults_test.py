"""The faults of tests.mutation still fit the code (the check runs apart)."""

import pathlib

from absl.testing import absltest

from tests import algorithm_ids
from tests.mutation import faults
from tests.mutation import id_check
from tests.mutation import patches

_ROOT = pathlib.Path(__file__).resolve().parent.parent


class FaultsTest(absltest.TestCase):

  def test_every_fault_applies_to_the_present_source(self):
    # A text that is gone raises: move the fault with the code.
    for fault in id_check.FAULTS:
      for module, source in fault.sources(_ROOT).items():
        compile(source, module, 'exec')
        self.assertNotEqual(source, (_ROOT / module).read_text('utf-8'))

  def test_faults_have_names_tests_and_rules(self):
    names = [fault.name for fault in id_check.FAULTS]
    self.assertLen(set(names), len(names))
    text = algorithm_ids.REFERENCE.read_text('utf-8')
    known = {i for ids in algorithm_ids.index(text).values() for i in ids}
    for fault in id_check.FAULTS:
      for test in fault.tests:
        self.assertTrue((_ROOT / test).is_file(), test)
      # 2.2 is the table of ends.
      self.assertLessEqual(set(fault.ids.split()), known | {'2.2'}, fault.name)

  def test_every_id_that_tests_name_has_a_fault(self):
    missing = [
        id_ for id_, found in id_check.candidates(_ROOT).items() if not found
    ]
    self.assertEqual(
        missing, [],
        'Write a fault of these rules, and name a test module that bears them.',
    )

  def test_a_fault_of_an_id_names_a_module_that_bears_it(self):
    for fault in set(id_check.FAULTS) - set(faults.FAULTS):
      borne = set().union(*id_check.bearing(_ROOT, fault).values())
      self.assertEqual(borne, set(fault.ids.split()), fault.name)

  def test_a_fault_that_does_not_apply_is_named(self):
    fault = patches.Fault(
        'gone', 'G9', (('rl_tpu/trainer.py', 'no such text', ''),), ()
    )
    with self.assertRaisesRegex(ValueError, "'gone' does not apply"):
      fault.sources(_ROOT)


if __name__ == '__main__':
  absltest.main()
