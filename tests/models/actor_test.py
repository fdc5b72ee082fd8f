"""Log-probabilities and entropies of the actor."""

import functools
import math
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import decoder
from rl_tpu.models import execution
from tests.models import cases


@functools.partial(
    jax.jit, static_argnames=('config', 'temperature', 'logits_chunk', 'dtype')
)
def measure(
    params, config, rows, temperature=1.0, logits_chunk=2048, dtype='float32'
):
  return actor.logp_and_entropy(
      params,
      config,
      rows,
      temperature=temperature,
      logits_chunk=logits_chunk,
      execution=execution.Execution(dtype=dtype),
  )


class ActorTest(parameterized.TestCase):

  def test_figures_stand_at_the_token_they_are_of(self):
    # Logits [2, 1, 0] after every token: log-softmax -0.4076059644,
    # -1.4076059644, -2.4076059644. Entropy 0.8323902 (worked in float64).
    config = cases.config(vocab_size=3)
    params = cases.flat_params(config, [2.0, 1.0, 0.0])
    rows = cases.rows([[1, 0, 2], [2, 1]], length=7)
    logp, entropy = measure(params, config, rows)
    low, middle, high = -2.4076059644, -1.4076059644, -0.4076059644
    np.testing.assert_allclose(
        logp[0], [0, high, low, 0, middle, 0, 0], atol=1e-5
    )
    one = -sum(x * math.exp(x) for x in (low, middle, high))
    np.testing.assert_allclose(
        entropy[0], [0, one, one, 0, one, 0, 0], atol=1e-5
    )

  def test_K14_temperature_divides_the_logits(self):
    config = cases.config(vocab_size=3)
    params = cases.flat_params(config, [2.0, 1.0, 0.0])
    rows = cases.rows([[1, 0]], length=2)
    logp, entropy = measure(params, config, rows, temperature=0.5)
    self.assertAlmostEqual(float(logp[0, 1]), -0.1429316285, places=5)
    # Logits [4, 2, 0]: log-probs -0.1429316, -2.1429316, -4.1429316.
    expected = -sum(
        x * math.exp(x) for x in (-0.1429316285, -2.1429316285, -4.1429316285)
    )
    self.assertAlmostEqual(float(entropy[0, 1]), expected, places=5)

  @parameterized.parameters(0.0, -1.0)
  def test_K14_no_training_without_temperature(self, temperature):
    config = cases.config()
    rows = cases.rows([[1, 2]], length=2)
    with self.assertRaisesRegex(ValueError, 'sampling.temperature'):
      actor.logp_and_entropy(
          cases.params(config), config, rows, temperature=temperature
      )

  def test_K15_logits_are_float32_under_bfloat16_activations(self):
    # 20.05 is no bfloat16 number: rounded logits would give -0.7586 twice.
    # Products of bfloat16 numbers that add up to it in float32: 20 + 0.05.
    config = cases.config(vocab_size=3, norm_eps=1e-12)
    params = cases.flat_params(config, [20.0, 20.0, 18.0])
    kernel = params['lm_head']['kernel']
    params['lm_head']['kernel'] = kernel.at[1, 1].set(0.05)
    rows = cases.rows([[2, 0, 1, 2]], length=4)
    expected = [-0.7823507436, -0.7323507436, -2.7823507436]
    logp, _ = measure(params, config, rows)
    np.testing.assert_allclose(logp[0, 1:], expected, atol=1e-5)
    # 0.05 itself is rounded to bfloat16 (error 5e-5), the sum is not.
    logp, _ = measure(params, config, rows, dtype='bfloat16')
    np.testing.assert_allclose(logp[0, 1:], expected, atol=2e-4)

  def test_K22_rows_without_a_token_have_no_probability(self):
    config = cases.config(vocab_size=8, usable_vocab=6)
    params = cases.flat_params(config, [0.0] * 8)
    rows = cases.rows([[0, 1, 2, 3, 4, 5]], length=6)
    logp, entropy = measure(params, config, rows)
    np.testing.assert_allclose(logp[0, 1:], -1.7917594692, atol=1e-6)
    np.testing.assert_allclose(entropy[0, 1:], math.log(6.0), atol=1e-6)

  def test_K22_rows_without_a_token_get_no_gradient(self):
    config = cases.config(usable_vocab=20)
    rows = cases.rows([cases.ids(1, 12, vocab=20)], length=12)

    def loss(params):
      logp, entropy = measure(params, config, rows)
      return jnp.sum(logp) + jnp.sum(entropy)

    gradient = jax.grad(loss)(cases.params(config))['lm_head']['kernel']
    np.testing.assert_array_equal(gradient[:, 20:], 0.0)
    self.assertTrue(np.all(np.isfinite(gradient)))
    self.assertGreater(float(jnp.abs(gradient[:, :20]).min()), 0.0)

  @parameterized.parameters(1, 7, 24, 36)
  def test_chunks_change_no_number_and_no_gradient(self, chunk):
    config = cases.config()
    params = cases.params(config)
    rows = cases.rows([cases.ids(1, 11)], [cases.ids(2, 12)], length=12)

    def loss(params, logits_chunk):
      logp, entropy = measure(
          params, config, rows, temperature=0.7, logits_chunk=logits_chunk
      )
      return jnp.sum(logp * logp) + jnp.sum(entropy), (logp, entropy)

    grad = jax.value_and_grad(loss, has_aux=True)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4, rtol=1e-5),
        grad(params, chunk),
        grad(params, 10**6),
    )

  def test_equals_plain_log_softmax_and_entropy(self):
    config = cases.config()
    params = cases.params(config)
    token = cases.ids(8, 15)
    rows = cases.rows([token], length=16)
    logp, entropy = measure(params, config, rows, temperature=1.7)
    plain = cases.log_softmax(cases.plain_logits(params, config, token) / 1.7)
    expected = [plain[p - 1, token[p]] for p in range(1, 15)]
    np.testing.assert_allclose(logp[0, 1:15], expected, atol=2e-5)
    surprise = -np.sum(np.exp(plain) * plain, axis=-1)
    np.testing.assert_allclose(entropy[0, 1:15], surprise[:14], atol=2e-5)

  def test_L16_log_probs_are_those_of_the_support(self):
    # Logits [2, 1, 0]: of {0, 1} log-softmax -0.3132616875, -1.3132616875; of
    # {2} alone 0. The second segment's first action has the whole vocabulary.
    config = cases.config(vocab_size=3)
    params = cases.flat_params(config, [2.0, 1.0, 0.0])
    rows = cases.rows([[1, 0, 2, 1], [2, 1, 2]], length=8)
    support = np.full((1, 8, 2), -1, np.int32)
    support[0, 1] = [1, 0]
    support[0, 2] = [2, -1]
    support[0, 3] = [0, 1]
    support[0, 6] = [0, 1]  # Holds not the token that stands there.
    logp, entropy = measure(params, config, rows._replace(support_BTM=support))
    high, low = -0.3132616875, -1.3132616875
    np.testing.assert_allclose(
        logp[0], [0, high, 0, low, 0, -1.4076059644, -np.inf, 0], atol=1e-5
    )
    pair = -sum(x * math.exp(x) for x in (high, low))
    np.testing.assert_allclose(
        entropy[0], [0, pair, 0, pair, 0, 0.8323902, pair, 0], atol=1e-5
    )

  @parameterized.parameters(8, 24)
  def test_L16_gradient_is_that_of_the_restricted_softmax(self, chunk):
    config = cases.config()
    params = cases.params(config)
    token = cases.ids(4, 12)
    rows = cases.rows([token], [token], length=12)
    rng = np.random.default_rng(0)
    support = rng.integers(0, config.vocab_size, (2, 12, 5)).astype(np.int32)
    support[..., 0] = np.asarray(rows.token_BT)
    support[0, 5:] = -1
    support[1, :, 4] = -1
    rows = rows._replace(support_BTM=support)
    member = np.zeros((2, 12, config.vocab_size), bool)
    for b, t, m in np.argwhere(support >= 0):
      member[b, t, support[b, t, m]] = True
    member[~(support >= 0).any(-1)] = True

    def ours(params):
      logp, entropy = measure(
          params, config, rows, temperature=0.7, logits_chunk=chunk
      )
      return jnp.sum(logp * jnp.arange(12)) + jnp.sum(entropy)

    def plain(params):
      hidden = decoder.hidden(
          params, config, rows.token_BT, rows.position_BT, rows.segment_BT
      )
      kernel = actor.output_kernel(params, config)
      scaled = actor.logits(hidden, kernel, config)[:, :-1] / 0.7
      logp = jax.nn.log_softmax(jnp.where(member[:, 1:], scaled, -jnp.inf))
      chosen = jnp.take_along_axis(
          logp, rows.token_BT[:, 1:, None], axis=-1
      )[..., 0]
      safe = jnp.where(member[:, 1:], logp, 0.0)
      probability = jnp.where(member[:, 1:], jnp.exp(safe), 0.0)
      entropy = -jnp.sum(probability * safe, -1)
      return jnp.sum(chosen * jnp.arange(1, 12)) + jnp.sum(entropy)

    found, expected = (jax.value_and_grad(f)(params) for f in (ours, plain))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4, rtol=1e-4),
        found[1],
        expected[1],
    )

  def test_no_array_holds_all_logits(self):
    config = cases.config(vocab_size=640)
    params = cases.params(config)
    B, T, V = 2, 96, 640
    rows = cases.rows([cases.ids(1, T)], [cases.ids(2, T)], length=T)

    def loss(params, chunk):
      logp, entropy = actor.logp_and_entropy(
          params, config, rows, temperature=1.0, logits_chunk=chunk
      )
      return jnp.sum(logp) + jnp.sum(entropy)

    def largest(chunk):
      grad = jax.jit(jax.grad(lambda p: loss(p, chunk)))
      text = grad.lower(params).compile().as_text()
      sizes = re.findall(r'(?:f32|bf16|f64)\[([\d,]+)\]', text)
      return max(math.prod(map(int, size.split(','))) for size in sizes)

    self.assertLess(largest(48), B * T * V)
    # The same search finds the array where one chunk takes everything.
    self.assertGreaterEqual(largest(B * T), B * T * V)

  @parameterized.parameters((512, 512, 512), (512, 100, 64), (7, 3, 1))
  def test_chunk_length_divides(self, length, limit, expected):
    self.assertEqual(actor.chunk_length(length, limit), expected)


if __name__ == '__main__':
  absltest.main()
