"""Slots, queue and token accounting, without a device."""

from absl.testing import absltest
import numpy as np

from rl_tpu.sampler import contract
from rl_tpu.sampler import scheduler as scheduler_lib
from rl_tpu.sampler import types
from tests.sampler import worlds


def _columns(tokens: list[list[int]], reasons: list[str | None], K: int):
  """What a call returns that samples these ids, with log-prob -id."""
  token = np.zeros((len(tokens), K), np.int32)
  valid = np.zeros((len(tokens), K), bool)
  for slot, ids in enumerate(tokens):
    token[slot, : len(ids)] = ids
    valid[slot, : len(ids)] = True
  return contract.Columns(
      token=token,
      valid=valid,
      length=np.zeros(len(tokens), np.int32),
      logprob=-token.astype(np.float32),
      finish=np.array([types.FINISH_REASONS.index(r) for r in reasons]),
      # The support of token t is {t, t + 1}; token 9 has the whole vocabulary.
      support_count=np.where(token == 9, 0, 2).astype(np.int32),
      support=np.where(
          token[..., None] == 9, -1, token[..., None] + np.array([0, 1])
      ).astype(np.int32),
  )


def _scheduler(slots: int, shards: int = 1, K: int = 2):
  return scheduler_lib.SlotScheduler(
      slots=slots, shards=shards, tokens_per_call=K
  )


class SchedulerTest(absltest.TestCase):

  def test_fills_the_emptiest_shard_in_order_of_submission(self):
    made = _scheduler(slots=4, shards=2)
    for name in 'abcde':
      made.submit(worlds.request(name, [1, 2]))
    self.assertEqual([one.slot for one in made.fill()], [0, 2, 1, 3])
    self.assertEqual((made.num_live, made.num_queued), (4, 1))
    done = made.record(_columns([[5]] * 4, [None, None, 'stop', None], 2), 0)
    self.assertEqual([one.request_id for one in done], ['b'])
    self.assertEqual([one.slot for one in made.fill()], [2])
    self.assertEqual(made.fill(), [])

  def test_needed_length_follows_the_longest(self):
    made = _scheduler(slots=2, K=4)
    made.submit(worlds.request('a', [1] * 9))
    made.fill()
    # The last prompt token is fed at 8, three more may follow.
    self.assertEqual(made.needed_length(), 12)
    made.record(_columns([[5] * 4, []], [None, None], 4), 0)
    self.assertEqual(made.needed_length(), 16)

  def test_K20_many_ends_at_one_moment_lose_nothing(self):
    made = _scheduler(slots=65, K=3)
    for number in range(65):
      made.submit(worlds.request(f'r{number}', [1]))
    made.fill()
    calls = [[[5]] * 65, [[6, 106]] * 65]
    made.record(_columns(calls[0], [None] * 65, 3), 4)
    done = made.record(_columns(calls[1], ['stop'] * 65, 3), 5)
    self.assertLen(done, 65)
    for completion in done:
      np.testing.assert_array_equal(completion.token, [5, 6, 106])
      np.testing.assert_array_equal(completion.logprob, [-5, -6, -106])
      np.testing.assert_array_equal(completion.version, [4, 5, 5])
      self.assertEqual(completion.finish_reason, 'stop')
    self.assertEqual(made.num_live, 0)

  def test_abort_in_slot_and_in_queue(self):
    made = _scheduler(slots=1)
    for name in 'ab':
      made.submit(worlds.request(name, [1]))
    made.fill()
    made.record(_columns([[7, 8]], [None], 2), 0)
    done, slot = made.abort('a')
    self.assertEqual((slot, done.finish_reason), (0, 'abort'))
    np.testing.assert_array_equal(done.token, [7, 8])
    done, slot = made.abort('b')
    self.assertIsNone(slot)
    self.assertLen(done.token, 0)
    self.assertEqual(made.abort('b'), (None, None))
    self.assertEqual((made.num_live, made.num_queued), (0, 0))

  def test_requeue_keeps_tokens_and_goes_before_the_queue(self):
    made = _scheduler(slots=2)
    for name in 'abc':
      made.submit(worlds.request(name, [1, 2]))
    made.fill()
    made.record(_columns([[7, 8], [9]], [None, None], 2), 0)
    self.assertEqual(made.requeue(), [0, 1])
    inserts = made.fill()
    self.assertEqual([one.slot for one in inserts], [0, 1])
    np.testing.assert_array_equal(inserts[0].prompt, [1, 2, 7, 8])
    np.testing.assert_array_equal(inserts[1].prompt, [1, 2, 9])
    done = made.record(_columns([[3], [4]], ['length', 'length'], 2), 1)
    np.testing.assert_array_equal(done[0].token, [7, 8, 3])
    np.testing.assert_array_equal(done[0].version, [0, 0, 1])
    np.testing.assert_array_equal(done[0].prompt, [1, 2])
    np.testing.assert_array_equal(done[0].support.count, [2, 2, 2])
    np.testing.assert_array_equal(done[0].support.ids, [7, 8, 8, 9, 3, 4])
    np.testing.assert_array_equal(done[1].support.count, [0, 2])
    np.testing.assert_array_equal(done[1].support.ids, [4, 5])

  def test_a_conversation_goes_back_to_its_slot(self):
    made = _scheduler(slots=3)
    for name, prompt in (('a', [1, 2]), ('b', [3]), ('c', [4])):
      made.submit(worlds.request(name, prompt))
    made.fill()
    made.record(_columns([[7, 8], [9], [5]], ['stop', 'stop', None], 2), 0)
    # A new one comes first; b's slot is the other free one, but used later.
    made.submit(worlds.request('d', [6, 6]))
    made.submit(worlds.request('a2', [1, 2, 7, 8, 10, 11]))
    new, again = made.fill()
    self.assertEqual((new.slot, new.start), (1, 0))
    # 8 was sampled but not fed: it is read now.
    self.assertEqual((again.slot, again.start), (0, 3))
    self.assertEqual(made.fill(), [])

  def test_caches_of_other_weights_are_not_continued(self):
    made = _scheduler(slots=2)
    for name, prompt in (('a', [1, 2]), ('b', [3, 4])):
      made.submit(worlds.request(name, prompt))
    made.fill()
    made.record(_columns([[7], [9]], ['stop', None], 2), 0)
    made.forget_caches()  # a's slot is free, b is in its own.
    made.record(_columns([[], [5]], [None, 'stop'], 2), 1)
    made.submit(worlds.request('a2', [1, 2, 7, 1]))
    made.submit(worlds.request('b2', [3, 4, 9, 5, 1]))
    self.assertEqual([one.start for one in made.fill()], [0, 0])

  def test_slot_of_an_ended_request_is_clean(self):
    made = _scheduler(slots=1)
    for name in 'ab':
      made.submit(worlds.request(name, [1]))
      made.fill()
      done = made.record(_columns([[7]], ['stop'], 2), 0)
      np.testing.assert_array_equal(done[0].token, [7])


if __name__ == '__main__':
  absltest.main()
