"""Layers that see a window keep no more than that, and nothing changes."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from tests.models import cases
from tests.models import parity
from tests.sampler import worlds

# Windows of 9 positions, 64 in all; 2 key heads of 16.
_gemma = functools.cache(parity.load)
# A window that is longer than the shortest cache.
_LONG = cases.config(local_layers=(1,), window=80, max_length=160)


def _sampler(params, model, **settings):
  settings = dict(K=4, slots=4, buckets=(64,), max_length=64) | settings
  return worlds.sampler(params, model=model, **settings)


def _assert_trainers(params, model, *done) -> None:
  """Log-probs, and greedy choices, are those of the training pass."""
  whole = [np.concatenate([one.prompt, one.token]) for one in done]
  rows = cases.rows(
      *([ids.tolist()] for ids in whole), length=model.max_length
  )
  logits, _ = parity.numbers(params, model, rows)
  logp_BTV = cases.log_softmax(np.asarray(logits, np.float64))
  for logp_TV, one in zip(logp_BTV, done, strict=True):
    first = len(one.prompt) - 1
    logp_TV = logp_TV[first : first + len(one.token)]
    wanted = np.take_along_axis(logp_TV, one.token[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(one.logprob, wanted, atol=1e-4)
    if one.params.temperature == 0:
      np.testing.assert_array_equal(one.token, logp_TV.argmax(axis=1))


class WindowTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(), 0.0), (dict(K=3, slots=8, on=(1, 2, 4)), 1.0)
  )
  def test_O4_turns_equal_the_trainer_and_cold_runs(
      self, settings, temperature
  ):
    golden = _gemma('gemma2')
    params, model = golden.params, golden.config
    made = _sampler(params, model, **settings)
    prompt = cases.ids(1, 5, model.vocab_size)
    # Replies end inside the first window and behind it; what follows them is
    # shorter and longer than a window; the last padding is behind the end.
    turns = ((3, 3), (6, 12), (9, 12), (5, 3), (4, 0))
    for turn, (sampled, answer) in enumerate(turns):
      request = worlds.request(
          f't{turn}',
          prompt,
          max_tokens=sampled,
          temperature=temperature,
          seed=turn,
      )
      one = worlds.drain(made, [request])[f't{turn}']
      _assert_trainers(params, model, one)
      cold = worlds.drain(_sampler(params, model), [request])[f't{turn}']
      worlds.assert_same(one, cold)
      answers = cases.ids(turn, answer, model.vocab_size)
      prompt = [*prompt, *one.token.tolist(), *answers]
    self.assertLen(prompt, 62)
    # What was there when the last four prompts came.
    self.assertEqual(made.stats()['reused_tokens'], 7 + 16 + 37 + 54)

  def test_slots_that_held_longer_sequences(self):
    golden = _gemma('gemma2')
    params, model = golden.params, golden.config
    made = _sampler(params, model)
    # One prompt longer than the window, read once for four slots; others
    # shorter; and again.
    group = cases.ids(3, 30, model.vocab_size)
    for turn, prompts in enumerate(
        ([group] * 4, [[n + 5] * (n + 1) for n in range(4)], [group[:12]] * 4)
    ):
      requests = [
          worlds.request(f'{turn}.{n}', prompt, max_tokens=12, seed=n)
          for n, prompt in enumerate(prompts)
      ]
      done = worlds.drain(made, requests)
      _assert_trainers(params, model, *done.values())
    self.assertEqual(made.stats()['prefill_tokens'], 30 + 1 + 2 + 3 + 4 + 12)

  def test_caches_shorter_and_longer_than_the_window(self):
    params = cases.params(_LONG)
    made = _sampler(params, _LONG, buckets=(32, 160), max_length=160)
    run = lambda name, prompt, count: worlds.drain(
        made, [worlds.request(name, prompt, max_tokens=count)]
    )[name]
    # The cache has 64 positions, then 128, and 64 for another sequence.
    first = run('a', cases.ids(2, 10), 50)
    prompt = [*first.prompt, *first.token, *cases.ids(3, 48)]
    second = run('b', prompt, 8)
    third = run('c', cases.ids(4, 20), 40)
    self.assertEqual(made.stats()['resizes'], 2)
    self.assertEqual(made.stats()['reused_tokens'], 59)
    _assert_trainers(params, _LONG, first, second, third)

  def test_bytes_of_the_cache(self):
    model = _gemma('gemma3_text').config
    self.assertEqual(model.local_layers, (0, 1, 2, 3, 4, 6))
    engine = worlds.engine(model, buckets=(64,), max_length=64)
    _, decode = engine.programs()
    leaves = jax.tree.leaves(decode.holds['cache'])
    # Keys and values of 4 slots, 2 heads of 16 float32: six layers of 9
    # positions and one of 64.
    self.assertEqual(
        sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
        2 * 4 * 2 * 16 * 4 * (6 * 9 + 64),
    )
    held = jax.tree.leaves(engine.init_decode_state().cache)
    self.assertEqual([x.shape for x in held], [x.shape for x in leaves])


if __name__ == '__main__':
  absltest.main()
