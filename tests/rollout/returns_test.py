"""E6: what was seen since the last action."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.records import records
from rl_tpu.rollout import returns
from tests import golden_io
from tests import synthetic


def segments(*roles: str, cut: str) -> tuple[records.Segment, ...]:
  """Token ids go by place; those of the first segment begin with 1."""
  golden = synthetic.rollout(list(roles))
  for segment in golden['segments'][:-1]:
    segment['cut'] = cut
  made = golden_io.rollout(golden).segments
  # What is not copied has other ids than what it stands beside.
  return tuple(
      dataclasses.replace(s, token=s.token + 10 * k * (s.token > copied))
      for k, (s, copied) in enumerate(
          zip(made, (0, *(len(text) for text in roles)))
      )
  )


class ObservationTest(parameterized.TestCase):

  def seen(self, chain, index, position):
    return returns.observation_before(chain, index, position).tolist()

  def test_E6_within_a_segment_it_begins_after_the_last_action(self):
    chain = segments('CCAAOOA', cut='compaction_cut')
    self.assertEqual(self.seen(chain, 0, 2), [1, 2])
    self.assertEqual(self.seen(chain, 0, 6), [5, 6])
    self.assertEqual(self.seen(chain, 0, 3), [])

  def test_E6_after_a_compaction_it_is_the_whole_context(self):
    chain = segments('CCAO', 'CCCCOA', cut='compaction_cut')
    self.assertEqual(self.seen(chain, 1, 5), [1, 2, 3, 4, 15])

  @parameterized.parameters(
      # The four tokens before are repeated; the fifth is new.
      ('CCCCOA', 5, [4, 15]),
      ('CCCCA', 4, [4]),
      # It repeats a part only: it does not go on from there.
      ('CCCA', 3, [1, 2, 3]),
      # The segment's own actions come after what it repeats.
      ('CCCCAOA', 6, [16]),
  )
  def test_E6_after_a_resume_it_goes_on(self, roles, position, expected):
    chain = segments('CCAO', roles, cut='resume_cut')
    self.assertEqual(self.seen(chain, 1, position), expected)

  def test_E6_it_goes_on_through_two_resumes(self):
    chain = segments('CCAO', 'CCCCO', 'CCCCCOA', cut='resume_cut')
    self.assertEqual(self.seen(chain, 2, 6), [4, 15, 26])


if __name__ == '__main__':
  absltest.main()
