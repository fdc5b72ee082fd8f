"""Drawing from logits: which tokens, how often, and at which log-prob."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.sampler import sampling

_SLOTS = 4096


@jax.jit
def _draw(logits_V, settings, seed):
  slots = settings.temperature_S.shape[0]
  seed_S2 = jnp.stack([jnp.full(slots, seed), jnp.arange(slots)], axis=1)
  bits = sampling.random_bits(
      seed_S2.astype(jnp.uint32), jnp.zeros((1, slots), jnp.int32)
  )[0]
  logits_VS = jnp.tile(logits_V[:, None], (1, slots))
  return sampling.draw(
      logits_VS,
      bits,
      settings,
      jnp.any(sampling.truncates(settings)),
      max_support=3,
  )


def _many(probability, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
  """Tokens and log-probs of 4096 draws."""
  full = lambda x, dtype=jnp.float32: jnp.full(_SLOTS, x, dtype)
  settings = sampling.Settings(
      full(temperature), full(top_k, jnp.int32), full(top_p), full(min_p)
  )
  with np.errstate(divide='ignore'):
    logits = jnp.asarray(np.log(probability), jnp.float32)
  drawn = _draw(logits, settings, 5)
  return np.asarray(drawn.token_S), np.asarray(drawn.logp_S)


def _supports(probability, slots):
  """Support counts and ids of slots, each with (temperature, k, p, min_p)."""
  columns = [jnp.asarray(column) for column in zip(*slots)]
  with np.errstate(divide='ignore'):
    logits = jnp.asarray(np.log(probability), jnp.float32)
  drawn = _draw(logits, sampling.Settings(*columns), 5)
  counts, supports = np.asarray(drawn.count_S), np.asarray(drawn.support_SM)
  return counts.tolist(), supports.tolist()


class SupportTest(absltest.TestCase):

  def test_R5_support_comes_with_the_token(self):
    # Of .1 .4 .3 .2: the first two reach .6, all four reach 1, half of .4 is
    # reached by three.
    count, ids = _supports(
        [0.1, 0.4, 0.3, 0.2],
        [
            (1.0, 0, 1.0, 0.0),
            (1.0, 2, 1.0, 0.0),
            (1.0, 0, 0.6, 0.0),
            (2.0, 0, 1.0, 0.7),
            (1.0, 0, 1.0, 0.49),
            (0.0, 2, 1.0, 0.0),
            (1.0, 9, 1.0, 0.0),
        ],
    )
    # At temperature 2, .3 has sqrt(.75) of the top and .2 sqrt(.5): both pass.
    # Slot 5 is greedy; slot 6 keeps four, more than the three that fit.
    self.assertEqual(count, [0, 2, 2, 3, 3, 0, -1])
    self.assertEqual(
        ids,
        [
            [-1, -1, -1],
            [1, 2, -1],
            [1, 2, -1],
            [1, 2, 3],
            [1, 2, 3],
            [-1, -1, -1],
            [-1, -1, -1],
        ],
    )

  def test_R5_ties_at_the_border_belong_to_the_support(self):
    count, ids = _supports([0.25, 0.25, 0.25, 0.25 / 2, 0.25 / 2],
                           [(1.0, 2, 1.0, 0.0)])
    self.assertEqual(count, [3])
    self.assertEqual(sorted(ids[0]), [0, 1, 2])


class DrawTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('plain', {}, [0.4, 0.3, 0.2, 0.1]),
      # Squares .16 .09 .04 .01 over .30.
      ('cold', {'temperature': 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
      ('top_k', {'top_k': 2}, [4 / 7, 3 / 7, 0, 0]),
      ('top_k_of_all', {'top_k': 9}, [0.4, 0.3, 0.2, 0.1]),
      # .4 < .6 <= .7.
      ('top_p', {'top_p': 0.6}, [4 / 7, 3 / 7, 0, 0]),
      ('top_p_of_one', {'top_p': 0.3}, [1, 0, 0, 0]),
      # At least half of .4.
      ('min_p', {'min_p': 0.49}, [4 / 9, 3 / 9, 2 / 9, 0]),
      # Of the three left, 4/9 and 3/9 reach .75.
      ('top_k_then_top_p', {'top_k': 3, 'top_p': 0.75}, [4 / 7, 3 / 7, 0, 0]),
      # Squares first: .16/.30 alone reaches .5.
      ('cold_top_p', {'temperature': 0.5, 'top_p': 0.5}, [1, 0, 0, 0]),
  )
  def test_processed_logprobs_and_frequencies(self, settings, want):
    token, logp = _many([0.4, 0.3, 0.2, 0.1], **settings)
    count = np.bincount(token, minlength=4)
    for index, probability in enumerate(want):
      if probability == 0:
        self.assertEqual(count[index], 0)
        continue
      np.testing.assert_allclose(
          logp[token == index], math.log(probability), atol=2e-6
      )
      spread = math.sqrt(_SLOTS * probability * (1 - probability))
      self.assertLess(
          abs(count[index] - _SLOTS * probability), 4.5 * spread + 1
      )

  def test_ties_with_the_last_one_kept_are_kept(self):
    token, logp = _many([0.4, 0.2, 0.2, 0.2], top_k=2)
    self.assertEqual(set(token), {0, 1, 2, 3})
    np.testing.assert_allclose(logp[token == 3], math.log(0.2), atol=2e-6)

  def test_greedy_reports_the_logprob_at_temperature_1(self):
    token, logp = _many([0.1, 0.2, 0.4, 0.3], temperature=0.0, top_k=1)
    self.assertEqual(set(token), {2})
    np.testing.assert_allclose(logp, math.log(0.4), atol=2e-6)

  def test_K22_rows_without_a_token_are_never_drawn(self):
    token, logp = _many([1.0] * 6 + [0.0] * 2)
    self.assertEqual(set(token), set(range(6)))
    np.testing.assert_allclose(logp, -1.7917594692, atol=2e-6)

  def test_large_vocabulary_reaches_every_block(self):
    # 1000 ids are 32 blocks of 32, the last of which is not full.
    weight = np.zeros(1000)
    weight[[0, 31, 32, 500, 999]] = [1, 2, 3, 2, 2]
    token, _ = _many(weight / 10)
    count = np.bincount(token, minlength=1000)
    self.assertEqual(count[weight == 0].sum(), 0)
    for index in np.nonzero(weight)[0]:
      self.assertAlmostEqual(
          count[index] / _SLOTS, weight[index] / 10, delta=0.04
      )

  def test_another_slot_that_truncates_changes_nothing(self):
    full = lambda x, dtype=jnp.float32: jnp.full(8, x, dtype)
    plain = sampling.Settings(
        full(1.0), full(0, jnp.int32), full(1.0), full(0.0)
    )
    mixed = plain._replace(top_k_S=plain.top_k_S.at[3].set(1))
    logits = jnp.asarray(np.random.default_rng(0).normal(size=50), jnp.float32)
    token, logp = _draw(logits, plain, 1)[:2]
    other, other_logp = _draw(logits, mixed, 1)[:2]
    rest = np.arange(8) != 3
    np.testing.assert_array_equal(token[rest], other[rest])
    np.testing.assert_array_equal(logp[rest], other_logp[rest])
    self.assertEqual(int(other[3]), int(jnp.argmax(logits)))

  def test_bits_follow_seed_and_index_alone(self):
    seed = jnp.array([[0, 7], [1, 7]], jnp.uint32)
    bits = sampling.random_bits(seed, jnp.array([[0, 3], [5, 0]]))
    key = jax.random.fold_in(jax.random.key(7), 5)
    np.testing.assert_array_equal(bits[1, 0], jax.random.key_data(key))
    self.assertLen({tuple(pair) for pair in bits.reshape(4, 2).tolist()}, 4)


if __name__ == '__main__':
  absltest.main()
