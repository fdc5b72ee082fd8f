"""O4: sampler and trainer on fixed sequences, and the failures it must find."""

import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.alignment import check
from rl_tpu.metrics import tags
from rl_tpu.models import arranged
from rl_tpu.models import decode
from tests.models import cases

WINDOW = 40
LIMITS = (1e-4, 1e-5)


def run(config, params, weights, **changes) -> check.Result:
  settings = {
      'temperature': 1.0, 'dtype': 'float32', 'limits': LIMITS,
      'window': WINDOW, **changes,
  }
  return check.run(params, weights, config, **settings)


class PlanTest(parameterized.TestCase):

  def test_O4_sequences_are_fixed_and_of_several_lengths(self):
    found = check.sequences(WINDOW, 24)
    again = check.sequences(WINDOW, 24)
    self.assertEqual([len(x) for x in found], [40, 20, 10, 5])
    for one, other in zip(found, again):
      np.testing.assert_array_equal(one, other)
      self.assertLess(one.max(), 24)
      self.assertGreaterEqual(one.min(), 0)
    self.assertFalse(
        np.array_equal(check.sequences(WINDOW, 24, seed=1)[0], found[0])
    )

  @parameterized.parameters(2, 3, 17, 40, 128, 1000)
  def test_O4_both_sides_score_the_same_tokens(self, window):
    plan = check.plan(window, 24)
    rows = plan.rows
    valid = plan.valid_SC
    # The id that the sampler is forced to is the one at the trainer's place.
    forced = np.take_along_axis(
        plan.token_ST,
        np.minimum(plan.position_SC, plan.token_ST.shape[1] - 1),
        axis=1,
    )
    at = (plan.row_SC[valid], plan.column_SC[valid])
    np.testing.assert_array_equal(rows.token_BT[at], forced[valid])
    np.testing.assert_array_equal(plan.token_SC[valid], forced[valid])
    np.testing.assert_array_equal(
        rows.position_BT[at], plan.position_SC[valid]
    )
    self.assertTrue((rows.segment_BT[at] >= 0).all())
    self.assertGreaterEqual(plan.position_SC[valid].min(), 1)
    self.assertEqual(plan.position_SC[valid].max(), window - 1)
    # A row's steps stay inside it, and the work is bounded.
    end = plan.start_S + plan.chunk
    self.assertLess(end.max(), plan.token_ST.shape[1])
    self.assertLessEqual(len(plan.start_S), 16)
    self.assertLessEqual(rows.token_BT.shape[0], 2)


class CheckTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.config = cases.config(max_length=64)
    self.params = cases.params(self.config)
    self.weights = arranged.arrange(self.params, self.config)

  @parameterized.parameters('llama', 'qwen3', 'llama3')
  def test_O4_agreement_passes(self, name):
    config = cases.config(max_length=64, **cases.VARIANTS[name])
    params = cases.params(config)
    found = run(config, params, arranged.arrange(params, config))
    self.assertTrue(found.passed)
    self.assertEqual(check.explain(found), '')
    # Positions 1 to 39: buckets 1, 2-3, 4-7, 8-15, 16-31, 32-39.
    self.assertEqual(list(found.by_position), [1, 2, 4, 8, 16, 32])
    largest = max(f['max_abs'] for f in found.by_position.values())
    self.assertEqual(largest, found.figures['max_abs'])

  def test_O4_a_wrong_temperature_is_found(self):
    found = run(self.config, self.params, self.weights)
    control = found.controls['temperature']
    self.assertGreater(control['max_abs'], LIMITS[0])
    self.assertGreater(control['mean_abs'], LIMITS[1])
    self.assertEqual(found.blind, [])

  def test_O4_the_distance_of_a_wrong_temperature(self):
    # Logits 2, 1, 0 after every token. At T = 1 the log-probs are
    # -0.4076, -1.4076, -2.4076; at T = 2, with logits 1, 0.5, 0, they are
    # -0.6803, -1.1803, -1.6803: d = 0.2727, -0.2273, -0.7273.
    config = cases.config(vocab_size=3, max_length=64)
    params = cases.flat_params(config, [2.0, 1.0, 0.0])
    found = run(config, params, arranged.arrange(params, config))
    self.assertTrue(found.passed)
    self.assertAlmostEqual(
        found.controls['temperature']['max_abs'], 0.7273, places=3
    )

  def test_O4_a_uniform_policy_cannot_tell_temperatures_apart(self):
    config = cases.config(vocab_size=3, max_length=64)
    params = cases.flat_params(config, [0.0, 0.0, 0.0])
    found = run(config, params, arranged.arrange(params, config))
    self.assertTrue(found.passed)
    self.assertEqual(found.blind, ['temperature'])

  def test_K32_weights_that_did_not_arrive_are_found(self):
    moved = jax.tree.map(lambda x: x * 1.05, self.params)
    found = run(self.config, moved, self.weights)
    self.assertFalse(found.passed)
    line = check.explain(found)
    self.assertNotIn('\n', line)
    self.assertIn('alignment.max_abs=0.0001', line)
    self.assertIn('no update is made', line)

  def test_O4_both_limits_have_to_hold(self):
    found = run(self.config, self.params, self.weights, limits=(1e-4, 1e-12))
    self.assertLess(found.figures['max_abs'], 1e-4)
    self.assertFalse(found.passed)
    found = run(self.config, self.params, self.weights, limits=(1e-12, 1e-4))
    self.assertFalse(found.passed)

  def test_O4_no_number_is_no_agreement(self):
    broken = jax.tree.map(lambda x: x * jnp.nan, self.params)
    self.assertFalse(run(self.config, broken, self.weights).passed)

  def test_O4_tags_are_in_the_table(self):
    found = run(self.config, self.params, self.weights).tags()
    self.assertEqual(tags.unknown(found), [])
    self.assertIn('policy/alignment_max_abs', found)
    self.assertIn('policy/alignment_control/temperature', found)


class SupportTest(parameterized.TestCase):

  def test_O4_an_id_outside_its_support_has_no_probability(self):
    # Logits 2, 1, 0, 5 at T = 1. Support {0, 1}: log-probs log(e/(1+e)) =
    # -0.3133 for 0 and -1.3133 for 1; 2 and 3 cannot be drawn.
    config = cases.config(vocab_size=4, max_length=64)
    params = cases.flat_params(config, [2.0, 1.0, 0.0, 5.0])
    weights = arranged.arrange(params, config)
    support = np.full((1, 4, 3), -1, np.int32)
    support[0, :3, :2] = [1, 0]
    logp = decode.forced_scores(
        weights,
        jnp.asarray([[3, 0, 1, 2, 3]]),
        jnp.asarray([0]),
        jnp.float32(1.0),
        config=config,
        chunk=4,
        support_SCM=jnp.asarray(support),
    )
    whole = 5.0 - math.log(sum(math.exp(x) for x in (2, 1, 0, 5)))
    np.testing.assert_allclose(
        logp[0], [-0.3132617, -1.3132617, -np.inf, whole], atol=1e-5
    )


  @parameterized.parameters(2, 3, 4, 24)
  def test_O4_a_wrong_support_holds_every_id_but_the_token(self, vocab):
    token = np.arange(2 * vocab).reshape(2, vocab) % vocab
    right, wrong = check.supports(token, vocab)
    self.assertEqual(right.shape, (2, vocab, min(vocab, 4)))
    for t, r, w in zip(
        token.ravel(), right.reshape(-1, right.shape[-1]),
        wrong.reshape(-1, wrong.shape[-1]),
    ):
      self.assertLen(set(r), len(r))
      self.assertIn(t, r)
      self.assertEqual(set(w), (set(r) - {t}) | {-1})
      self.assertTrue((r >= 0).all() and (r < vocab).all())

  def test_O4_a_wrong_support_gives_log_probability_minus_infinity(self):
    config = cases.config(max_length=64)
    params = cases.params(config)
    found = run(config, params, arranged.arrange(params, config))
    self.assertTrue(found.passed)
    self.assertEqual(found.impossible, 1.0)
    self.assertLess(found.support['max_abs'], LIMITS[0])
    # A support is a part of the vocabulary: its tokens are likelier than
    # without it, so the check has seen other numbers.
    self.assertNotEqual(found.support, found.figures)
    self.assertEqual(tags.unknown(found.tags()), [])

  def test_O4_a_trainer_without_replay_is_found(self):
    config = cases.config(max_length=64)
    params = cases.params(config)
    real = check.score.trainer_logp

    def blind(params, rows, *rest):
      return real(params, rows._replace(support_BTM=None), *rest)

    with mock.patch.object(check.score, 'trainer_logp', blind):
      found = run(config, params, arranged.arrange(params, config))
    self.assertTrue(found.figures['max_abs'] < LIMITS[0])
    self.assertFalse(found.passed)
    self.assertEqual(found.impossible, 0.0)
    self.assertIn('does not replay supports', check.explain(found))

  def test_O4_a_support_that_differs_is_over_the_limits(self):
    config = cases.config(max_length=64)
    params = cases.params(config)
    real = check.score.trainer_logp

    def shifted(params, rows, *rest):
      # One id of each support is another one.
      support = rows.support_BTM
      other = jnp.where(support >= 0, (support + 5) % cases.VOCAB, -1)
      moved = support.at[..., 2].set(other[..., 2])
      return real(params, rows._replace(support_BTM=moved), *rest)

    with mock.patch.object(check.score, 'trainer_logp', shifted):
      found = run(config, params, arranged.arrange(params, config))
    self.assertFalse(found.passed)
    self.assertIn('under a sampling support', check.explain(found))


if __name__ == '__main__':
  absltest.main()
