"""The classic faults of tests.mutation still fit the code (it runs apart)."""

import pathlib

from absl.testing import absltest

from tests import algorithm_ids
from tests.mutation import faults

_ROOT = pathlib.Path(__file__).resolve().parent.parent


class FaultsTest(absltest.TestCase):

  def test_every_fault_applies_to_the_present_source(self):
    # A text that is gone raises: move the fault with the code.
    for fault in faults.FAULTS:
      for module, source in fault.sources(_ROOT).items():
        compile(source, module, 'exec')
        self.assertNotEqual(source, (_ROOT / module).read_text('utf-8'))

  def test_faults_have_names_tests_and_rules(self):
    names = [fault.name for fault in faults.FAULTS]
    self.assertLen(set(names), len(names))
    text = algorithm_ids.REFERENCE.read_text('utf-8')
    known = {i for ids in algorithm_ids.index(text).values() for i in ids}
    for fault in faults.FAULTS:
      for test in fault.tests:
        self.assertTrue((_ROOT / test).is_file(), test)
      # 2.2 is the table of ends.
      self.assertLessEqual(set(fault.ids.split()), known | {'2.2'}, fault.name)

  def test_a_fault_that_does_not_apply_is_named(self):
    fault = faults.Fault(
        'gone', 'G9', (('rl_tpu/trainer.py', 'no such text', ''),), ()
    )
    with self.assertRaisesRegex(ValueError, "'gone' does not apply"):
      fault.sources(_ROOT)


if __name__ == '__main__':
  absltest.main()
