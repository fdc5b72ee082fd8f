"""When a window is compacted."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.rollout import compaction

# request 9 + summary 20 = 29 tokens are kept free; a reply takes up to 24 and
# the environment 8.
_BASE = dict(
    window=152, prompt=12, request=9, turns=2, max_turn_tokens=24
)


def _config(**changes):
  settings = dict(
      mode='window', lookahead=50, observation_reserve=8, max_summary_tokens=20
  )
  return schema.CompactionConfig(**(settings | changes))


class CompactionTest(parameterized.TestCase):

  @parameterized.parameters(
      # 61 + 12 + 50 + 29 = 152 still fits, 62 does not.
      (61, True, False),
      (62, True, True),
      # Without a new prompt only the hard limit counts:
      # 79 + 12 + 24 + 8 + 29 = 152.
      (79, False, False),
      (80, False, True),
  )
  def test_window_is_due_when_the_next_exchange_does_not_fit(
      self, used, at_prompt, expected
  ):
    due = compaction.is_due(
        _config(), used=used, at_prompt=at_prompt, **_BASE
    )
    self.assertEqual(due, expected)

  def test_off_never_compacts(self):
    due = compaction.is_due(
        _config(mode='off'), used=10_000, at_prompt=True, **_BASE
    )
    self.assertFalse(due)

  @parameterized.parameters((3, False), (4, True), (5, True))
  def test_fixed_counts_turns(self, turns, expected):
    due = compaction.is_due(
        _config(mode='fixed', every_turns=4),
        used=10,
        at_prompt=False,
        **(_BASE | {'turns': turns}),
    )
    self.assertEqual(due, expected)

  def test_fixed_still_obeys_the_window(self):
    due = compaction.is_due(
        _config(mode='fixed', every_turns=100),
        used=80,
        at_prompt=False,
        **_BASE,
    )
    self.assertTrue(due)

  def test_a_fresh_window_is_never_compacted(self):
    # A summary of nothing would loop for ever.
    due = compaction.is_due(
        _config(), used=10_000, at_prompt=True, **(_BASE | {'turns': 0})
    )
    self.assertFalse(due)

  def test_a_runtime_summary_needs_no_room_for_sampling(self):
    # 108 + 12 + 24 + 8 = 152.
    for used, expected in ((108, False), (109, True)):
      due = compaction.is_due(
          _config(author='runtime'), used=used, at_prompt=False, **_BASE
      )
      self.assertEqual(due, expected)


if __name__ == '__main__':
  absltest.main()
