"""The fields of the records are those that the reference names."""

import dataclasses
import re

from absl.testing import absltest

from rl_tpu.records import records
from rl_tpu.types import budget
from rl_tpu.types import termination as term
from tests import algorithm_ids


def words(text: str) -> set[str]:
  """Names in backticks."""
  return set(re.findall(r'`([a-z_]+)`', text))


def fields(record: type) -> set[str]:
  return {field.name for field in dataclasses.fields(record)}


class RecordsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    text = algorithm_ids.REFERENCE.read_text('utf-8')
    # From the definition of an id up to the next one.
    parts = re.split(r'^\*\*([A-Z]\d+)\*\* ', text, flags=re.MULTILINE)
    self.rules = dict(zip(parts[1::2], parts[2::2]))

  def test_R1_a_rollout_has_the_fields_of_the_reference(self):
    rows = re.findall(r'^\| (`[^|]*) \|', self.rules['R1'], re.MULTILINE)
    named = set().union(*map(words, rows))
    self.assertGreater(len(named), 25)
    self.assertEqual(named - fields(records.Rollout), set())
    self.assertLessEqual(
        {'turns', 'tokens', 'wall_s', 'window', 'budget_visible',
         'holds_at_eval'},
        fields(budget.Budget),
    )

  def test_R1_what_the_runtime_must_write_has_no_default(self):
    required = {
        field.name
        for field in dataclasses.fields(records.Rollout)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    }
    for name in ('rollout_id', 'termination', 'terminal_reward', 'solved',
                 'env_version', 'verifier_version', 'budgets', 'num_segments'):
      self.assertIn(name, required)

  def test_R2_R3_a_segment_has_the_fields_of_the_reference(self):
    kinds = {'compaction_cut', 'resume_cut', 'policy', 'runtime', 'other_model'}
    kinds |= {cause.value for cause in term.CutCause}
    named = words(self.rules['R2']) - kinds
    # R3 is about positions: one entry of these columns each.
    named |= words(self.rules['R3']) - {'stop'}
    self.assertGreater(len(named), 14)
    self.assertEqual(named - fields(records.Segment), set())


if __name__ == '__main__':
  absltest.main()
