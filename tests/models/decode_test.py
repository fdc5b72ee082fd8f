"""Prefill and decode steps against the plain decoder."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import arranged
from rl_tpu.models import decode
from rl_tpu.sharding import rules
from tests.models import cases


_arrange = jax.jit(arranged.arrange, static_argnums=1)
_prefill = jax.jit(decode.prefill, static_argnums=1)
_step = jax.jit(decode.step, static_argnums=1)


def _plain_logp(params, model, ids, temperature=1.0) -> np.ndarray:
  logits = cases.plain_logits(params, model, ids[:-1]) / temperature
  logits -= logits.max(axis=-1, keepdims=True)
  logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
  return logp[np.arange(len(ids) - 1), ids[1:]]


class DecodeTest(parameterized.TestCase):

  @parameterized.parameters(*cases.VARIANTS)
  def test_O4_prefill_and_steps_equal_the_plain_decoder(self, variant):
    model = cases.config(**cases.VARIANTS[variant])
    params = cases.params(model)
    ids = np.array(cases.ids(1, 23))
    for temperature in (1.0, 0.7):
      got = decode.forced_logprobs(params, model, ids, temperature=temperature)
      self.assertEqual(got.dtype, np.float32)
      want = _plain_logp(params, model, ids, temperature)
      np.testing.assert_allclose(got, want, atol=1e-4)

  def test_O4_key_heads_that_are_there_several_times(self):
    model = cases.config(num_heads=8, qkv_bias=True, qk_norm=True)
    params, ids = cases.params(model), np.array(cases.ids(1, 9))
    served = dataclasses.replace(model, num_kv_heads=4)
    self.assertEqual(_arrange(params, served).layers[0].qkv.shape[0], 4)
    got = decode.forced_logprobs(params, served, ids)
    np.testing.assert_allclose(got, _plain_logp(params, model, ids), atol=1e-4)

  def test_short_sequences(self):
    model = cases.config()
    params = cases.params(model)
    self.assertEqual(decode.forced_logprobs(params, model, [3]).shape, (0,))
    for count in (2, 3, 4):
      ids = np.array(cases.ids(2, count))
      got = decode.forced_logprobs(params, model, ids)
      want = _plain_logp(params, model, ids)
      np.testing.assert_allclose(got, want, atol=1e-4)

  def test_K22_rows_without_a_token(self):
    model = cases.config(vocab_size=8, usable_vocab=6)
    params = cases.flat_params(model, [0.0] * 8)
    got = decode.forced_logprobs(params, model, [1, 2, 5, 0])
    np.testing.assert_allclose(got, -1.7917594692, rtol=1e-6)
    weights = _arrange(params, model)
    logits_VS = decode.logits(weights, model, jnp.ones((32, 2)))
    np.testing.assert_array_equal(logits_VS[6:], -np.inf)

  def test_K23_padding_behind_a_prompt_is_not_seen(self):
    model = cases.config(qk_norm=True)
    weights = _arrange(cases.params(model), model)
    prompt = jnp.array([[7, 8, 9]])
    caches = [
        _prefill(weights, model, token, jnp.array([3]))
        for token in (
            prompt,
            jnp.pad(prompt, ((0, 0), (0, 5))),
            jnp.pad(prompt, ((0, 0), (0, 5)), constant_values=4),
        )
    ]
    hidden = []
    for cache in caches:
      cache = jax.tree.map(
          lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 4), (0, 0)))[:, :, :4],
          cache,
      )
      for position, token in ((2, 9), (3, 1)):
        hidden_DS, cache = _step(
            weights, model, jnp.array([token]), jnp.array([position]), cache
        )
      hidden.append(hidden_DS)
    np.testing.assert_allclose(hidden[1], hidden[0], atol=1e-5)
    np.testing.assert_allclose(hidden[2], hidden[0], atol=1e-5)

  def test_slots_do_not_see_each_other(self):
    model = cases.config()
    weights = _arrange(cases.params(model), model)
    token_ST = jnp.array([[1, 2, 3, 4], [5, 6, 0, 0]])
    length_S = jnp.array([4, 2])
    both = _prefill(weights, model, token_ST, length_S)
    both_DS, _ = _step(
        weights, model, jnp.array([4, 6]), length_S - 1, both
    )
    for slot in range(2):
      rows = slice(slot, slot + 1)
      alone = _prefill(weights, model, token_ST[rows], length_S[rows])
      alone_DS, _ = _step(
          weights,
          model,
          jnp.array([4, 6])[rows],
          length_S[rows] - 1,
          alone,
      )
      np.testing.assert_allclose(both_DS[:, rows], alone_DS, atol=1e-6)

  def test_first_step_leaves_the_prefilled_cache(self):
    model = cases.config(qkv_bias=True)
    weights = _arrange(cases.params(model), model)
    before = _prefill(
        weights, model, jnp.array([[3, 1, 4]]), jnp.array([3])
    )
    _, after = _step(
        weights, model, jnp.array([4]), jnp.array([2]), before
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), before, after
    )

  @parameterized.parameters(*cases.VARIANTS)
  def test_every_weight_has_named_dimensions(self, variant):
    model = cases.config(**cases.VARIANTS[variant])
    weights = _arrange(cases.params(model), model)
    is_names = lambda x: isinstance(x, tuple) and isinstance(x[0], str)
    names = jax.tree.leaves(arranged.logical_axes(model), is_leaf=is_names)
    leaves = jax.tree.leaves(weights)
    self.assertEqual(len(names), len(leaves))
    for axes, leaf in zip(names, leaves):
      self.assertLen(axes, leaf.ndim)
      self.assertLessEqual(set(axes), set(rules.RULES))


if __name__ == '__main__':
  absltest.main()
