"""R2, R3, R7, G7: what the recorder writes down."""

import numpy as np
from absl.testing import absltest

from rl_tpu.records import records
from rl_tpu.rollout import recorder
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term

_SAMPLING = records.Sampling(
    1.0, 0, 1.0, 0.0, (9,), 3, 'b', 'float32', 't', 'k'
)


def _ids(*values):
  return np.array(values, np.int32)


def _sampled(recorder_, ids, turn, **options):
  count = len(ids)
  recorder_.sampled(
      _ids(*ids),
      -np.arange(1, count + 1, dtype=np.float32),
      np.full(count, 5, np.int32),
      turn_id=turn,
      sampling=_SAMPLING,
      **options,
  )


class RecorderTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    made = recorder.Recorder('r', 'env@1', {'tool': 0.5})
    made.open(_ids(1, 2, 3))
    _sampled(made, [4, 9], 0)
    made.reward('tool', 1.0)
    made.observe(_ids(6))
    made.remark(_ids(7, 8))
    _sampled(made, [4, 4, 9], 1, is_summary=True)
    made.cut(term.Cut.COMPACTION)
    made.open(_ids(1, 4, 4), summary=_ids(4, 4), summary_author='policy')
    _sampled(
        made,
        [5, 5],
        2,
        support=support_lib.Support(np.int32([2, 1]), _ids(5, 6, 5)),
    )
    made.reward('unweighted', 2.0)
    self.components = made.components
    self.first, self.second = made.close(term.Termination.POLICY_STOP)

  def test_R3_roles_types_and_turns(self):
    self.assertEqual(''.join(self.first.role), 'CCCAAORRSSS')
    self.assertEqual(''.join(self.second.role), 'CCCAA')
    np.testing.assert_array_equal(
        self.first.turn_id, [-1, -1, -1, 0, 0, -1, -1, -1, 1, 1, 1]
    )
    kinds = [records.TOKEN_TYPES[k] for k in self.first.token_type]
    self.assertEqual(kinds[3:5], ['text', 'stop'])
    self.assertEqual(kinds[8:], ['summary', 'summary', 'stop'])

  def test_L19_types_of_a_parser_are_kept_and_the_stop_has_its_own(self):
    made = recorder.Recorder('r', 'env@1', {})
    made.open(_ids(1))
    types = np.int32([2, 4, 1])
    _sampled(made, [4, 5, 9], 0, token_type=types)
    _sampled(made, [4, 9], 1, token_type=types[:2], is_summary=True)
    segment, = made.close(term.Termination.POLICY_STOP)
    kinds = [records.TOKEN_TYPES[k] for k in segment.token_type[1:]]
    self.assertEqual(
        kinds, ['tool_name', 'arg_value', 'stop', 'summary', 'stop']
    )
    np.testing.assert_array_equal(types, [2, 4, 1])

  def test_R2_offsets_and_state_references_join_the_segments(self):
    self.assertEqual(self.second.global_token_offset, 11)
    self.assertEqual(self.second.action_offset, 5)
    self.assertEqual(self.second.turn_offset, 2)
    self.assertEqual(self.first.next_state_ref, self.second.prev_state_ref)
    self.assertIsNone(self.first.prev_state_ref)
    self.assertIsNone(self.second.next_state_ref)
    self.assertEqual(self.first.end_kind, 'compaction_cut')
    self.assertEqual(self.second.end_kind, 'policy_stop')

  def test_R7_a_copied_summary_is_context(self):
    self.assertEqual(self.second.context_length, 3)
    self.assertEqual(
        self.second.summary_hash, recorder.token_hash(_ids(4, 4))
    )
    self.assertFalse(self.second.is_action[:3].any())

  def test_G7_a_reward_lands_on_the_action_that_earned_it(self):
    np.testing.assert_array_equal(
        self.first.reward, [0, 0, 0, 0, 0.5, 0, 0, 0, 0, 0, 0]
    )

  def test_R9_a_component_without_weight_is_kept_raw_and_not_paid(self):
    self.assertEqual(self.components['unweighted'], [(1, 4, 2.0)])
    self.assertEqual(float(np.abs(self.second.reward).sum()), 0.0)

  def test_behaviour_numbers_stand_at_their_tokens(self):
    np.testing.assert_array_equal(
        self.second.behaviour_logprob, np.float32([0, 0, 0, -1, -2])
    )
    np.testing.assert_array_equal(
        self.second.behaviour_version, [-1, -1, -1, 5, 5]
    )

  def test_R5_supports_stand_at_their_tokens(self):
    self.assertIsNone(self.first.support)
    np.testing.assert_array_equal(self.second.support.count, [0, 0, 0, 2, 1])
    np.testing.assert_array_equal(self.second.support.ids, [5, 6, 5])


if __name__ == '__main__':
  absltest.main()
