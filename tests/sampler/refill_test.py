"""The table that a refill works through."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.sampler import refill
from rl_tpu.sampler import state as state_lib
from rl_tpu.sampler import types


def _insert(slot: int, prompt: list[int], start: int = 0):
  control = state_lib.row(types.SamplingParams(max_tokens=7), token=prompt[-1])
  return state_lib.Insert(slot, np.array(prompt, np.int32), start, control)


def _table(*inserts, bucket=4, slots=8, shards=2, chunk=2) -> refill.Table:
  return refill.table(
      inserts, bucket=bucket, slots=slots, shards=shards, chunk=chunk
  )


class TableTest(parameterized.TestCase):

  def test_rows_of_each_shard(self):
    made = _table(
        _insert(1, [5, 6, 7]), _insert(6, [8]), _insert(2, [9, 9])
    )
    # 4 slots a shard; 4 tokens; length, start, source, slot; control.
    self.assertEqual(made.data.shape, (8, 4 + 4 + state_lib.WIDTH))
    head = made.data[:, :8].tolist()
    self.assertEqual(head[0], [5, 6, 7, 0, 3, 0, 0, 1])
    self.assertEqual(head[1], [9, 9, 0, 0, 2, 0, 1, 2])
    self.assertEqual(head[2], [0, 0, 0, 0, 0, 0, 4, 0])
    self.assertEqual(head[4], [8, 0, 0, 0, 1, 0, 0, 2])
    self.assertEqual(made.data[0, 8], 7)  # The control row: its last token.
    # Two prompts on one shard and one on the other: four rows of 4.
    self.assertEqual((made.tokens, made.padding, made.reused), (6, 10, 0))

  def test_equal_prompts_in_a_row_are_read_once(self):
    same = [_insert(slot, [5, 6]) for slot in (0, 4, 1, 2)]
    made = _table(*same, _insert(3, [7]))
    self.assertEqual(made.data[:4, 6].tolist(), [0, 0, 0, 1])
    self.assertEqual(made.data[:2, 4].tolist(), [2, 1])
    # Once on each shard.
    self.assertEqual(made.tokens, 5)

  def test_continued_prompts_hold_what_is_new(self):
    made = _table(_insert(0, [1, 2, 3, 4, 5, 6], 4), _insert(1, [5, 6, 7], 1))
    head = made.data[:2, :8].tolist()
    self.assertEqual(head[0], [5, 6, 0, 0, 2, 4, 0, 0])
    self.assertEqual(head[1], [6, 7, 0, 0, 2, 1, 1, 1])
    self.assertEqual((made.tokens, made.padding, made.reused), (4, 4, 5))

  @parameterized.parameters(
      # 3 new ones are padded to 16, 17 to 32, 33 to 64.
      (100, 97, 128, 16),
      (100, 83, 128, 32),
      (100, 67, 128, 64),
      (100, 1, 128, 128),
      (10, 9, 8, 8),
  )
  def test_bucket_of_what_is_new(self, length, start, whole, want):
    insert = _insert(0, [1] * length, start)
    self.assertEqual(refill.bucket_for(insert, whole), want)


class ControlTest(absltest.TestCase):

  def test_every_setting_arrives(self):
    params = types.SamplingParams(
        max_tokens=9,
        temperature=0.7,
        top_k=3,
        top_p=0.9,
        min_p=0.05,
        stop_ids=(4, 5),
        seed=(3 << 32) + 0xFFFFFFFF,
    )
    row = state_lib.row(params, token=11, position=12, generated=2)
    slots = state_lib.read(state_lib.rows([row]))
    for got, want in (
        (slots.token_S, [11]),
        (slots.position_S, [12]),
        (slots.generated_S, [2]),
        (slots.limit_S, [9]),
        (slots.live_S, [True]),
        (slots.seed_S2, [[3, 0xFFFFFFFF]]),
        (slots.settings.temperature_S, np.float32([0.7])),
        (slots.settings.top_k_S, [3]),
        (slots.settings.top_p_S, np.float32([0.9])),
        (slots.settings.min_p_S, np.float32([0.05])),
        (slots.stop_SN, [[4, 5, -1, -1]]),
    ):
      np.testing.assert_array_equal(got, want)


if __name__ == '__main__':
  absltest.main()
