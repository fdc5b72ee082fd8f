"""L19: types of tokens from parts of the text, and what figures split by."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.rollout import joins
from rl_tpu.rollout import packing
from rl_tpu.rollout import strata
from rl_tpu.rollout import timeline
from rl_tpu.rollout import token_typing
from rl_tpu.types import token_types
from tests.learner import recorded


class Pieces:
  """A tokenizer whose ids are indices into a list of byte strings."""

  def __init__(self, *pieces: bytes):
    self._pieces = pieces

  def decode(self, ids) -> str:
    return b''.join(self._pieces[i] for i in ids).decode(errors='replace')


def names(pieces, parse):
  tokenizer = Pieces(*pieces)
  ids = np.arange(len(pieces))
  found = token_typing.types(ids, tokenizer.decode(ids), tokenizer, parse)
  return [token_types.NAMES[k] for k in found]


class TokenTypingTest(parameterized.TestCase):

  def test_L19_a_token_has_the_type_of_its_first_character(self):
    # 'ca|lc(12|)': the second token begins inside the name.
    parse = lambda text: [(0, 4, 'tool_name'), (4, 5, 'structure'),
                          (5, 7, 'arg_value'), (7, 8, 'structure')]
    self.assertEqual(
        names([b'ca', b'lc(', b'12', b')'], parse),
        ['tool_name', 'tool_name', 'arg_value', 'structure'],
    )

  def test_L19_a_later_part_covers_an_earlier_one(self):
    parse = lambda text: [(0, 5, 'structure'), (2, 3, 'arg_key')]
    self.assertEqual(
        names([b'{', b'"', b'k', b'"', b'}'], parse),
        ['structure', 'structure', 'arg_key', 'structure', 'structure'],
    )

  def test_L19_unknown_is_text(self):
    self.assertEqual(names([b'a', b'b'], None), ['text', 'text'])
    self.assertEqual(names([b'a', b'b'], lambda text: []), ['text', 'text'])
    self.assertEqual(
        names([b'a', b'b'], lambda text: [(1, 2, 'tool_name')]),
        ['text', 'tool_name'],
    )

  def test_L19_characters_made_of_several_tokens(self):
    # Two bytes of one letter are two tokens, which both begin at that letter;
    # alone they decode to something else.
    letter = 'é'.encode()
    parse = lambda text: [(0, 1, 'tool_name'), (1, 3, 'arg_value')]
    self.assertEqual(
        names([letter[:1], letter[1:], b'x', b'y'], parse),
        ['tool_name', 'tool_name', 'arg_value', 'arg_value'],
    )

  def test_an_unknown_type_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'verb'.*tool_name"):
      names([b'a'], lambda text: [(0, 1, 'verb')])


class StrataTest(absltest.TestCase):

  def test_L19_types_tenths_and_lengths_by_rollout_and_not_by_row(self):
    rollouts = recorded.rollouts(32, 6, seed=5)
    flat = timeline.tokens([r.segments for r in rollouts])
    acts = timeline.actions(flat, level='token')
    layout = packing.pack(
        flat.lengths, np.zeros(len(flat.lengths), int), num_minibatches=1,
        row_length=64, rows_per_microbatch=1,
    )
    grid = joins.Grid(flat, layout, 64)
    found = strata.strata(flat, acts, grid)
    place = grid.place[acts.token]
    position = found.position_BT.reshape(-1)[place]
    length = found.length_BT.reshape(-1)[place]
    for r, rollout in enumerate(rollouts):
      count = rollout.num_actions
      want = [int(10 * j / count) for j in range(count)]
      np.testing.assert_array_equal(position[acts.rollout == r], want)
      power = max(k for k in range(20) if 2**k <= count)
      np.testing.assert_array_equal(length[acts.rollout == r], power)
      types = np.concatenate(
          [s.token_type[s.is_action] for s in rollout.segments]
      )
      np.testing.assert_array_equal(
          found.type_BT.reshape(-1)[place][acts.rollout == r], types
      )
    off = np.ones(found.type_BT.size, bool)
    off[place] = False
    np.testing.assert_array_equal(found.type_BT.reshape(-1)[off], 0)

  def test_L8_origin_names_rollout_and_task_of_every_segment(self):
    rollouts = recorded.rollouts(32, 7, seed=6)
    flat = timeline.tokens([r.segments for r in rollouts])
    found = strata.origin(flat, rollouts)
    want = [r for r, rollout in enumerate(rollouts) for _ in rollout.segments]
    np.testing.assert_array_equal(found.rollout_N[: len(want)], want)
    np.testing.assert_array_equal(found.rollout_N[len(want):], -1)
    # Seven rollouts of five tasks in turn.
    np.testing.assert_array_equal(found.task_R[:8], [0, 1, 2, 3, 4, 0, 1, -1])


if __name__ == '__main__':
  absltest.main()
