"""The contract of a completion (sampler.md section 7)."""

import collections
import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from rl_tpu.models import actor
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.sampler import types
from rl_tpu.sharding import compile_count
from tests.models import cases
from tests.sampler import worlds

_CHAIN = cases.config(
    vocab_size=110, width=112, max_length=worlds.MAX_LENGTH
)
_LONG = cases.config(max_length=160)


def _mixed() -> list[types.Request]:
  """Requests of many lengths and settings."""
  kinds = (
      {},
      {'temperature': 0.7},
      {'temperature': 0.0},
      {'top_k': 5},
      {'top_p': 0.8, 'temperature': 1.3},
      {'min_p': 0.1},
  )
  return [
      worlds.request(
          f'r{number}',
          cases.ids(number, 1 + number * 5 % 16),
          max_tokens=1 + number * 7 % 12,
          stop_ids=(3, 11),
          seed=2**40 + number,
          **kinds[number % len(kinds)],
      )
      for number in range(18)
  ]


def _chain_sampler(K: int) -> sampler_lib.JetStreamSampler:
  """Token 4 starts 5, 6, 106, 7, 8, and 3 is followed by 106."""
  successor = {4: 5, 5: 6, 6: 106, 106: 7, 7: 8, 8: 9, 3: 106, 20: 21, 21: 22}
  params = worlds.chain_params(_CHAIN, successor)
  return worlds.sampler(params, model=_CHAIN, K=K)


class CompletionTest(parameterized.TestCase):

  @parameterized.parameters(1, 3, 4, 8)
  def test_K19_stop_ids_and_the_limit(self, K):
    done = worlds.drain(
        _chain_sampler(K),
        [
            worlds.request('a', [4], max_tokens=9, stop_ids=(1, 106)),
            worlds.request('b', [9, 4], max_tokens=2, stop_ids=(1, 106)),
            worlds.request('c', [3], max_tokens=9, stop_ids=(1, 106)),
            worlds.request('d', [4], max_tokens=3, stop_ids=(1, 106)),
        ],
    )
    found = {
        name: (one.token.tolist(), one.finish_reason)
        for name, one in done.items()
    }
    self.assertEqual(
        found,
        {
            'a': ([5, 6, 106], 'stop'),
            'b': ([5, 6], 'length'),
            'c': ([106], 'stop'),
            'd': ([5, 6, 106], 'stop'),
        },
    )
    for one in done.values():
      self.assertEqual(len(one.logprob), len(one.token))
      self.assertEqual(one.token.dtype, np.int32)
      self.assertEqual(one.logprob.dtype, np.float32)

  def test_K20_many_end_together(self):
    made = _chain_sampler(4)
    requests = [
        worlds.request(f'r{n}', [4], max_tokens=9, stop_ids=(106,))
        for n in range(65)
    ]
    done = worlds.drain(made, requests)
    self.assertLen(done, 65)
    for one in done.values():
      np.testing.assert_array_equal(one.token, [5, 6, 106])
      self.assertLen(one.logprob, 3)
    self.assertEqual(made.stats()['stops'], 65)

  @parameterized.parameters(1, 3, 4, 8)
  def test_max_tokens_is_exact(self, K):
    requests = [
        worlds.request(f'r{n}', [n], max_tokens=n, seed=n)
        for n in range(1, 18)
    ]
    for one in worlds.drain(worlds.sampler(K=K), requests).values():
      self.assertLen(one.token, one.params.max_tokens)
      self.assertEqual(one.finish_reason, 'length')

  @parameterized.parameters(1, 4, 8)
  def test_context_ends_at_max_length(self, K):
    request = worlds.request('a', cases.ids(1, 16), max_tokens=100)
    one = worlds.drain(worlds.sampler(K=K), [request])['a']
    self.assertEqual(one.finish_reason, 'context')
    self.assertLen(one.token, worlds.MAX_LENGTH - 16)
    logp = worlds.replay(worlds.PARAMS(), one)
    np.testing.assert_allclose(one.logprob, logp, atol=1e-4)

  def test_same_tokens_whatever_the_schedule(self):
    requests = _mixed()
    want = worlds.drain(worlds.sampler(K=1, slots=4), requests)
    shuffled = np.random.default_rng(0).permutation(len(requests))
    for settings in (
        dict(K=3, slots=8, on=(2, 2, 2)),
        dict(K=4, slots=8, on=(8, 1, 1)),
        dict(K=4, slots=4),
        dict(K=8, slots=4),
    ):
      got = worlds.drain(
          worlds.sampler(**settings), [requests[i] for i in shuffled]
      )
      for name, one in want.items():
        worlds.assert_same(got[name], one)
    made = worlds.sampler(K=8, slots=4)
    for request in requests[:4]:
      alone = worlds.drain(made, [request])[request.request_id]
      worlds.assert_same(alone, want[request.request_id])

  def test_processed_logprobs_equal_a_float64_replay(self):
    for one in worlds.drain(worlds.sampler(K=8), _mixed()).values():
      want = worlds.replay(worlds.PARAMS(), one)
      np.testing.assert_allclose(one.logprob, want, atol=1e-4)

  @parameterized.parameters(1.0, 0.6)
  def test_O4_logprobs_equal_the_training_forward(self, temperature):
    requests = [
        worlds.request(
            f'r{n}',
            cases.ids(n, 5 + n),
            max_tokens=20,
            temperature=temperature,
            seed=n,
        )
        for n in range(6)
    ]
    done = worlds.drain(worlds.sampler(K=8), requests)
    whole = [np.concatenate([one.prompt, one.token]) for one in done.values()]
    logp_BT, _ = actor.logp_and_entropy(
        worlds.PARAMS(),
        worlds.MODEL,
        cases.rows(*([ids.tolist()] for ids in whole), length=32),
        temperature=temperature,
    )
    for row, one in zip(np.asarray(logp_BT), done.values()):
      start = len(one.prompt)
      np.testing.assert_allclose(
          one.logprob, row[start : start + len(one.token)], atol=1e-4
      )

  def test_K22_rows_without_a_token(self):
    model = cases.config(vocab_size=8, usable_vocab=6, max_length=48)
    params = cases.flat_params(model, [0.0] * 8)
    requests = [
        worlds.request(f'r{n}', [n], max_tokens=30, seed=n) for n in range(4)
    ]
    done = worlds.drain(worlds.sampler(params, model=model, K=4), requests)
    seen = np.concatenate([one.token for one in done.values()])
    self.assertEqual(set(seen.tolist()), set(range(6)))
    for one in done.values():
      np.testing.assert_allclose(one.logprob, -1.7917594692, rtol=1e-5)

  def test_group_prompt_is_read_once(self):
    made = worlds.sampler(K=4, slots=4)
    requests = [
        worlds.request(f'g{n}', [5, 6, 7], max_tokens=5, seed=n)
        for n in range(4)
    ]
    done = worlds.drain(made, requests)
    self.assertEqual(made.stats()['prefill_tokens'], 3)
    self.assertLen({tuple(one.token) for one in done.values()}, 4)
    for one in done.values():
      want = worlds.replay(worlds.PARAMS(), one)
      np.testing.assert_allclose(one.logprob, want, atol=1e-4)

  def test_K24_compacted_context_equals_a_cold_run(self):
    made = worlds.sampler(K=4, slots=4)
    worlds.drain(made, [worlds.request('long', range(1, 9), max_tokens=12)])
    short = worlds.request('short', [1, 2, 20, 21, 8], max_tokens=9, seed=4)
    fresh = worlds.request('fresh', [9, 9], max_tokens=9, seed=5)
    for request in (short, fresh):
      warm = worlds.drain(made, [request])[request.request_id]
      cold = worlds.drain(worlds.sampler(K=4, slots=4), [request])
      worlds.assert_same(warm, cold[request.request_id])
      want = worlds.replay(worlds.PARAMS(), warm)
      np.testing.assert_allclose(warm.logprob, want, atol=1e-4)


class ConversationTest(parameterized.TestCase):
  """Prompts that continue what their slot read before."""

  def _talk(self, made, turns: int, first: int, seed: int):
    """Turns of one conversation: prompt, reply and three tokens in answer."""
    prompt = cases.ids(seed, first)
    for turn in range(turns):
      request = worlds.request(f's{seed}t{turn}', prompt, seed=seed + turn)
      one = worlds.drain(made, [request])[request.request_id]
      yield request, one
      prompt = [*prompt, *one.token.tolist(), *cases.ids(turn, 3)]

  @parameterized.parameters(((1, 1, 1), 4), ((8, 1, 1), 8), ((2, 2, 2), 8))
  def test_turns_equal_cold_runs_and_reuse_the_cache(self, on, slots):
    K = 3 if on == (2, 2, 2) else 4
    made = worlds.sampler(K=K, slots=slots, on=on)
    for request, one in self._talk(made, turns=3, first=9, seed=1):
      cold = worlds.drain(worlds.sampler(K=4, slots=4), [request])
      worlds.assert_same(one, cold[request.request_id])
      want = worlds.replay(worlds.PARAMS(), one)
      np.testing.assert_allclose(one.logprob, want, atol=1e-4)
    # 9 prompt tokens; then 14 and 23 are there, and 1 + 3 are new each time.
    self.assertEqual(made.stats()['prefill_tokens'], 9 + 4 + 4)
    self.assertEqual(made.stats()['reused_tokens'], 14 + 23)

  def test_two_conversations_and_others_between(self):
    made = worlds.sampler(K=4, slots=4)
    talks = [self._talk(made, 3, 8 + s, s) for s in range(2)]
    for turn, both in enumerate(zip(*talks)):
      worlds.drain(
          made, [worlds.request(f'x{turn}{n}', [n + 1]) for n in range(2)]
      )
      for _, one in both:
        want = worlds.replay(worlds.PARAMS(), one)
        np.testing.assert_allclose(one.logprob, want, atol=1e-4)
    self.assertGreater(made.stats()['reused_tokens'], 40)

  def test_O9_a_deterministic_reply_has_the_same_bits_in_any_company(self):
    settings = dict(
        model=_LONG, K=4, slots=4, buckets=(32, 128), max_length=160,
        on=(2, 1, 1), deterministic=True,
    )
    params, draw = cases.params(_LONG, 0), np.random.default_rng(5)
    alone, talks = worlds.sampler(params, **settings), {}
    for number in range(8):
      # Half of them are longer than the shortest cache.
      talk = self._talk(alone, turns=3, first=9 + 60 * (number % 2), seed=number)
      talks[number] = list(talk)
    self.assertEqual(alone.stats()['reused_tokens'], 0)
    made = worlds.sampler(params, **settings)
    waiting, turn = list(draw.permutation(len(talks))), collections.Counter()
    while waiting or made.busy:
      for number in waiting[: draw.integers(0, 4)]:
        waiting.remove(number)
        made.submit(talks[number][turn[number]][0])
      for one in made.step():
        number = int(one.request_id[1])
        want = talks[number][turn[number]][1]
        np.testing.assert_array_equal(one.token, want.token)
        np.testing.assert_array_equal(one.logprob, want.logprob)
        turn[number] += 1
        if turn[number] < 3:
          waiting.insert(draw.integers(0, len(waiting) + 1), number)
    self.assertEqual(set(turn.values()), {3})
    self.assertEqual(made.stats()['resizes'], 0)

  def test_up_to_the_last_position(self):
    # 48 positions and padding to 16: the last turns start before the cache
    # they continue, and the sixth ends at the context's end.
    made = worlds.sampler(K=4, slots=4)
    talk = self._talk(made, turns=4, first=10, seed=3)
    ends = []
    for _, one in talk:
      want = worlds.replay(worlds.PARAMS(), one)
      np.testing.assert_allclose(one.logprob, want, atol=1e-4)
      ends.append(len(one.prompt) + len(one.token))
      if ends[-1] + 3 > 32:
        break
    self.assertEqual(ends, [16, 25, 34])
    self.assertGreater(made.stats()['reused_tokens'], 0)

  def test_K24_rewritten_history_is_read_anew(self):
    made = worlds.sampler(K=4, slots=4)
    first = worlds.request('a', cases.ids(1, 12))
    one = worlds.drain(made, [first])['a']
    whole = [*one.prompt.tolist(), *one.token.tolist()]
    compacted = worlds.request('b', [*whole[:2], 20, 21, *whole[8:]])
    again = worlds.drain(made, [compacted])['b']
    self.assertEqual(made.stats()['reused_tokens'], 0)
    want = worlds.replay(worlds.PARAMS(), again)
    np.testing.assert_allclose(again.logprob, want, atol=1e-4)

  @parameterized.parameters('drain', 'inflight', 'restart')
  def test_K32_new_weights_read_the_whole_prompt(self, mode):
    made = worlds.sampler(K=4, slots=4)
    made.submit(worlds.request('live', cases.ids(5, 9), max_tokens=6))
    one = worlds.drain(made, [worlds.request('a', cases.ids(1, 9))])['a']
    made.submit(worlds.request('over', cases.ids(6, 9), max_tokens=9))
    made.step()
    made.update_weights(1, worlds.PARAMS(1), mode)
    over = worlds.drain(made)['over']
    before = made.stats()['reused_tokens']
    for name, old in (('a2', one), ('over2', over)):
      prompt = [*old.prompt.tolist(), *old.token.tolist(), 1, 2]
      request = worlds.request(name, prompt)
      new = worlds.drain(made, [request])[name]
      want = worlds.replay(worlds.PARAMS(1), new)
      np.testing.assert_allclose(new.logprob, want, atol=1e-4)
    reused = made.stats()['reused_tokens'] - before
    # After a restart the live one was read whole by the new weights.
    self.assertEqual(reused, 17 if mode == 'restart' else 0)


class SubmitTest(parameterized.TestCase):

  def test_prompt_too_long_is_refused_not_cut(self):
    made = worlds.sampler(K=4)
    with self.assertRaisesRegex(ValueError, r'shape \(33,\); 1 to 32'):
      made.submit(worlds.request('a', [1] * 33))
    self.assertFalse(made.busy)

  @parameterized.parameters(
      ([], {}, 'shape'),
      ([24], {}, r'\[0, 24\), got 24 to 24'),
      ([-1], {}, 'got -1'),
      ([1], {'stop_ids': (24,)}, 'got 1 to 24'),
  )
  def test_ids_outside_the_model(self, prompt, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      worlds.sampler(K=4).submit(worlds.request('a', prompt, **settings))

  def test_id_in_use(self):
    made = worlds.sampler(K=4)
    made.submit(worlds.request('a', [1]))
    with self.assertRaisesRegex(ValueError, "'a': the id is in use"):
      made.submit(worlds.request('a', [2]))
    worlds.drain(made)
    made.submit(worlds.request('a', [2]))
    made.abort('a')
    with self.assertRaisesRegex(ValueError, 'in use'):
      made.submit(worlds.request('a', [2]))

  @parameterized.parameters(
      (dict(max_tokens=0), 'max_tokens must be at least 1'),
      (dict(temperature=-1.0), 'temperature must be 0 or more, got -1.0'),
      (dict(temperature=float('nan')), 'temperature'),
      (dict(top_p=0.0), r'top_p must lie in \(0, 1\]'),
      (dict(top_k=-1), 'top_k'),
      (dict(min_p=1.5), 'min_p'),
      (dict(stop_ids=(1, 2, 3, 4, 5)), 'at most 4 stop_ids, got 5'),
  )
  def test_settings_out_of_range(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      worlds.request('a', [1], **settings)

  def test_no_weights_yet(self):
    made = sampler_lib.JetStreamSampler(worlds.engine(K=4))
    self.assertIsNone(made.version)
    made.submit(worlds.request('a', [1]))
    with self.assertRaisesRegex(ValueError, 'publish'):
      made.step()


class AbortTest(absltest.TestCase):

  def test_abort_in_slot_in_queue_and_unknown(self):
    made = worlds.sampler(K=4, slots=4)
    for n in range(5):
      made.submit(worlds.request(f'r{n}', [n], max_tokens=12, seed=n))
    self.assertEqual(made.step(), [])
    self.assertTrue(made.abort('r1'))
    self.assertTrue(made.abort('r4'))
    self.assertFalse(made.abort('other'))
    made.submit(worlds.request('next', [7], max_tokens=3, seed=7))
    done = worlds.drain(made)
    self.assertEqual(done['r1'].finish_reason, 'abort')
    self.assertLen(done['r1'].token, 4)
    self.assertLen(done['r4'].token, 0)
    self.assertLen(done['r0'].token, 12)
    self.assertEqual(made.stats()['aborts'], 2)
    want = worlds.replay(worlds.PARAMS(), done['next'])
    np.testing.assert_allclose(done['next'].logprob, want, atol=1e-4)


class UpdateTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.old, self.new = worlds.PARAMS(), worlds.PARAMS(1)
    self.made = worlds.sampler(K=4, slots=4)
    # Two calls are over when the weights change, eight tokens each.
    for n in range(2):
      self.made.submit(
          worlds.request(f'r{n}', cases.ids(n, 5), max_tokens=20, seed=n)
      )
    self.assertEqual(self.made.step() + self.made.step(), [])

  def test_drain_ends_live_requests_under_one_version(self):
    self.made.update_weights(3, self.new, 'drain')
    self.assertEqual(self.made.version, 3)
    self.made.submit(worlds.request('late', [5], max_tokens=6))
    done = worlds.drain(self.made)
    for name, params, version in (
        ('r0', self.old, 0),
        ('r1', self.old, 0),
        ('late', self.new, 3),
    ):
      self.assertEqual(set(done[name].version.tolist()), {version})
      want = worlds.replay(params, done[name])
      np.testing.assert_allclose(done[name].logprob, want, atol=1e-4)

  def test_inflight_changes_the_version_at_a_call(self):
    self.made.update_weights(3, self.new, 'inflight')
    one = worlds.drain(self.made)['r0']
    np.testing.assert_array_equal(one.version, [0] * 8 + [3] * 12)
    old = worlds.replay(self.old, one)
    np.testing.assert_allclose(one.logprob[:8], old[:8], atol=1e-4)
    # The old keys and values stay, so the new weights alone do not explain
    # the rest.
    new = worlds.replay(self.new, one)
    self.assertGreater(np.abs(one.logprob[8:] - new[8:]).max(), 1e-3)

  def test_K32_restart_reads_kept_tokens_by_the_new_weights(self):
    self.made.update_weights(3, self.new, 'restart')
    done = worlds.drain(self.made)
    for one in done.values():
      np.testing.assert_array_equal(one.version, [0] * 8 + [3] * 12)
      np.testing.assert_allclose(
          one.logprob[:8], worlds.replay(self.old, one)[:8], atol=1e-4
      )
      np.testing.assert_allclose(
          one.logprob[8:], worlds.replay(self.new, one)[8:], atol=1e-4
      )
    self.assertLen(done['r0'].prompt, 5)

  @parameterized.parameters('drain', 'inflight', 'restart')
  def test_K32_no_old_cache_after_new_weights(self, mode):
    worlds.drain(self.made)
    for turn in range(5):
      params = worlds.PARAMS(2 + turn % 2)
      self.made.update_weights(turn, params, mode)
      request = worlds.request(f't{turn}', [1, 2, 3], max_tokens=7, seed=1)
      one = worlds.drain(self.made, [request])[f't{turn}']
      fresh = worlds.sampler(params, K=4, slots=4)
      cold = worlds.drain(fresh, [request])[f't{turn}']
      worlds.assert_same(one, cold)
      self.assertEqual(set(one.version.tolist()), {turn})

  def test_K33_failed_transfer_leaves_version_and_requests(self):
    broken = {**self.new, 'lm_head': {'kernel': np.zeros((2, 2))}}
    for mode in ('inflight', 'restart'):
      with self.assertRaisesRegex(ValueError, 'lm_head/kernel'):
        self.made.update_weights(9, broken, mode)
    with self.assertRaisesRegex(ValueError, "sampler.sync = 'later'"):
      self.made.update_weights(9, self.new, 'later')
    self.assertEqual(self.made.version, 0)
    for one in worlds.drain(self.made).values():
      want = worlds.replay(self.old, one)
      np.testing.assert_allclose(one.logprob, want, atol=1e-4)

  def test_O6_after_a_reset_everything_is_as_at_the_start(self):
    self.made.reset()
    self.assertFalse(self.made.busy)
    self.assertIsNone(self.made.version)
    with self.assertRaisesRegex(ValueError, 'publish some first'):
      self.made.weights
    self.made.update_weights(4, self.new, 'drain')
    # The same id as before, and nothing of the caches of before.
    request = worlds.request('r0', [1, 2, 3], max_tokens=7, seed=1)
    with compile_count.count_compilations() as counter:
      one = worlds.drain(self.made, [request])['r0']
    self.assertEqual(counter.count, 0)
    cold = worlds.sampler(self.new, K=4, slots=4)
    worlds.assert_same(one, worlds.drain(cold, [request])['r0'])
    self.assertEqual(set(one.version.tolist()), {4})

  def test_publication_compiles_nothing(self):
    worlds.drain(self.made)
    request = worlds.request('x', [1, 2], max_tokens=20)
    worlds.drain(self.made, [request])
    with compile_count.count_compilations() as counter:
      for version in range(1, 4):
        self.made.update_weights(version, worlds.PARAMS(version % 2))
        renamed = dataclasses.replace(request, request_id=f'x{version}')
        worlds.drain(self.made, [renamed])
    self.assertEqual(counter.count, 0, counter.names)

  def test_params_may_be_donated_after_the_update(self):
    params = jax.tree.map(lambda x: x + 0, self.new)
    self.made.update_weights(3, params)
    jax.tree.map(lambda x: x.delete(), params)
    worlds.drain(self.made)
    one = worlds.drain(self.made, [worlds.request('x', [1, 2])])['x']
    want = worlds.replay(self.new, one)
    np.testing.assert_allclose(one.logprob, want, atol=1e-4)


class StatsTest(absltest.TestCase):

  def test_every_slot_step_is_counted(self):
    made = worlds.sampler(K=4, slots=4)
    requests = [
        worlds.request(f'r{n}', [1 + n] * 9, max_tokens=5, seed=n)
        for n in range(6)
    ]
    done = worlds.drain(made, requests)
    stats = made.stats()
    self.assertEqual(stats['requests'], 6)
    self.assertEqual(stats['generated_tokens'], 30)
    self.assertEqual(
        stats['generated_tokens'] + stats['dead_slot_steps'],
        stats['calls'] * 4 * 4,
    )
    # 9 of a bucket of 32, four prompts and then two, read four at a time.
    self.assertEqual(stats['prefill_tokens'], 54)
    self.assertEqual(stats['prefill_padding'], 8 * 32 - 54)
    self.assertEqual(stats['lengths'], len(done))
    made.reset_stats()
    self.assertEqual(set(made.stats().values()), {0})


if __name__ == '__main__':
  absltest.main()
