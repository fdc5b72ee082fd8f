"""The decoder: agreement with a plain loop, packing seams, padding."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import critic
from rl_tpu.models import decoder
from rl_tpu.models import execution
from tests.models import cases


@functools.partial(jax.jit, static_argnames=('config', 'remat', 'dtype'))
def logp(params, config, rows, remat='none', dtype='float32'):
  return actor.logp_and_entropy(
      params,
      config,
      rows,
      temperature=1.0,
      execution=execution.Execution(dtype=dtype, remat=remat),
  )[0]


@functools.partial(jax.jit, static_argnames='config')
def values(params, config, rows):
  head_BT = critic.value_head(params, config, rows)
  return critic.align(head_BT, rows.position_BT)


def make_critic(params):
  made = critic.init_params(params, head_bias=0.1)
  made['value_head']['kernel'] = jnp.linspace(-1.0, 1.0, 32)
  return made


class DecoderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.config = cases.config()
    self.params = cases.params(self.config)

  @parameterized.parameters(*cases.VARIANTS)
  def test_matches_a_plain_float64_loop(self, name):
    config = cases.config(**cases.VARIANTS[name])
    params = cases.params(config)
    token = cases.ids(3, 40)
    rows = cases.rows([cases.ids(4, 9), token], length=50)
    plain = cases.log_softmax(cases.plain_logits(params, config, token))
    expected = [plain[p - 1, token[p]] for p in range(1, 40)]
    found = logp(params, config, rows)[0, 10:49]
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)

  def test_layers_are_stacked_and_every_dimension_is_named(self):
    config = cases.config(qkv_bias=True, qk_norm=True, num_layers=3)
    params = cases.params(config)
    self.assertEqual(params['layers']['query']['kernel'].shape, (3, 32, 4, 8))
    axes = decoder.logical_axes(config)
    self.assertEqual(
        axes['layers']['query']['kernel'],
        ('layer', 'width', 'heads', 'head_width'),
    )
    same = lambda names, p: self.assertLen(names, p.ndim)
    jax.tree.map(same, axes, params, is_leaf=lambda x: isinstance(x, tuple))
    shapes = jax.tree.map(lambda p: p.shape, decoder.shapes_of(config))
    self.assertEqual(shapes, jax.tree.map(lambda p: p.shape, params))

  def test_layers_start_different_and_embedding_is_not_tied(self):
    params = decoder.init_params(self.config, jax.random.key(0))
    gate = params['layers']['gate']['kernel']
    self.assertGreater(float(jnp.abs(gate[0] - gate[1]).max()), 0.01)
    self.assertIn('lm_head', params)
    tied = decoder.init_params(
        cases.config(tie_embeddings=True), jax.random.key(0)
    )
    self.assertNotIn('lm_head', tied)

  def test_P1_P2_packed_segments_have_the_numbers_they_have_alone(self):
    segments = [cases.ids(1, 7), cases.ids(2, 12), cases.ids(3, 5)]
    made = make_critic(self.params)
    packed = cases.rows(segments, length=30)
    start = 0
    for ids in segments:
      alone = cases.rows([ids], length=16)
      stop = start + len(ids)
      for function, tree in ((logp, self.params), (values, made)):
        np.testing.assert_allclose(
            function(tree, self.config, packed)[0, start:stop],
            function(tree, self.config, alone)[0, : len(ids)],
            atol=1e-5,
        )
      start = stop

  @parameterized.parameters(2, 3)
  def test_V2_P2_a_change_in_a_segment_leaves_others_bit_equal(self, count):
    segments = [cases.ids(seed, 8) for seed in range(count)]
    changed = [list(ids) for ids in segments]
    changed[0] = [(token + 5) % cases.VOCAB for token in segments[0]]
    made = make_critic(self.params)
    for function, tree in ((logp, self.params), (values, made)):
      before = function(tree, self.config, cases.rows(segments, length=26))
      after = function(tree, self.config, cases.rows(changed, length=26))
      rest = slice(8, 8 * count)
      np.testing.assert_array_equal(before[0, rest], after[0, rest])
      self.assertGreater(float(jnp.abs(before - after)[0, :8].max()), 1e-3)

  def test_P2_no_gradient_crosses_the_seam(self):
    # Ids 0-11 stand in the first and last segment only.
    segments = [[1, 5, 9, 3], [13, 20, 15, 22], [2, 7, 11]]
    rows = cases.rows(segments, length=12)

    def middle(embedding):
      params = self.params | {'embed': {'embedding': embedding}}
      return jnp.sum(logp(params, self.config, rows)[0, 4:8])

    gradient = jax.grad(middle)(self.params['embed']['embedding'])
    np.testing.assert_array_equal(gradient[:12], 0.0)
    self.assertGreater(float(jnp.abs(gradient[13]).max()), 1e-4)

  def test_V2_a_later_token_changes_no_earlier_number(self):
    ids = cases.ids(6, 14)
    other = list(ids)
    other[9] = (other[9] + 1) % cases.VOCAB
    before = logp(self.params, self.config, cases.rows([ids], length=16))
    after = logp(self.params, self.config, cases.rows([other], length=16))
    np.testing.assert_array_equal(before[0, :9], after[0, :9])
    self.assertGreater(float(jnp.abs(before - after)[0, 9:].max()), 1e-3)

  def test_K23_padding_side_and_neighbours_do_not_matter(self):
    ids = [7, 8, 9]
    alone = logp(self.params, self.config, cases.rows([ids], length=3))[0]
    left = cases.rows([ids], length=5, left=2)
    right = cases.rows([ids], length=5)
    np.testing.assert_array_equal(left.position_BT[0, 2:], [0, 1, 2])
    beside = cases.rows([ids], [cases.ids(1, 40)], length=40)
    for rows, where in ((left, slice(2, 5)), (right, slice(3)),
                        (beside, slice(3))):
      found = logp(self.params, self.config, rows)[0, where]
      np.testing.assert_allclose(found, alone, atol=1e-5)

  def test_K21_the_id_in_padding_does_not_matter(self):
    # Pad id 2 is the end id too, and an inner 2 is read as a token.
    ids = [11, 2, 12, 2]
    padded = [
        logp(self.params, self.config, cases.rows([ids], length=6, pad_id=pad))
        for pad in (0, 2, 23)
    ]
    np.testing.assert_array_equal(padded[0], padded[1])
    np.testing.assert_array_equal(padded[0], padded[2])
    self.assertTrue(np.all(np.asarray(padded[1])[0, 1:4] < 0.0))
    np.testing.assert_array_equal(padded[1][0, 4:], 0.0)
    other = cases.rows([[11, 3, 12, 2]], length=6)
    self.assertNotEqual(
        float(padded[0][0, 2]),
        float(logp(self.params, self.config, other)[0, 2]),
    )

  def test_rows_of_padding_are_finite_and_have_no_gradient(self):
    rows = cases.rows([cases.ids(1, 6)], [], length=9)

    def loss(params, rows):
      return jnp.sum(logp(params, self.config, rows))

    value, gradient = jax.value_and_grad(loss)(self.params, rows)
    hidden = decoder.hidden(self.params, self.config, *rows[:3])
    self.assertTrue(np.all(np.isfinite(hidden)))
    self.assertTrue(np.isfinite(value))
    one = jax.tree.map(lambda x: x[:1], rows)
    alone = jax.grad(loss)(self.params, one)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5),
        gradient,
        alone,
    )

  @parameterized.parameters('attention', 'layer')
  def test_remat_changes_no_number(self, remat):
    rows = cases.rows([cases.ids(1, 20)], length=20)

    def loss(params, remat):
      return jnp.sum(logp(params, self.config, rows, remat=remat))

    kept = jax.value_and_grad(loss)(self.params, 'none')
    recomputed = jax.value_and_grad(loss)(self.params, remat)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5),
        kept,
        recomputed,
    )

  def test_gradient_equals_finite_differences(self):
    rows = cases.rows([cases.ids(1, 9), cases.ids(2, 6)], length=16)
    leaves, tree = jax.tree.flatten(self.params)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    towards = jax.tree.unflatten(
        tree,
        [jax.random.normal(k, p.shape) for k, p in zip(keys, leaves)],
    )

    def loss(step):
      moved = jax.tree.map(lambda p, d: p + step * d, self.params, towards)
      return jnp.sum(logp(moved, self.config, rows))

    step = 2e-3
    difference = (loss(step) - loss(-step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(loss)(0.0), difference, rtol=1e-2)

  def test_embeddings_are_scaled_in_the_dtype_of_the_activations(self):
    # The root of 3072 is 55.42563; the nearest bfloat16 numbers are 55.25 and
    # 55.5, and the reference takes 55.5.
    config = cases.config(width=3072, embed_scale=True)
    one = jnp.ones((1, 3072))
    scaled = decoder.scale_embedding(one, config)
    np.testing.assert_allclose(scaled, 55.42563, rtol=1e-6)
    rounded = decoder.scale_embedding(one.astype(jnp.bfloat16), config)
    np.testing.assert_array_equal(rounded.astype(jnp.float32), 55.5)

  def test_bfloat16_activations_stay_near_float32(self):
    rows = cases.rows([cases.ids(1, 20)], length=20)
    params = decoder.init_params(self.config, jax.random.key(2))
    exact = logp(params, self.config, rows)
    rounded = logp(params, self.config, rows, dtype='bfloat16')
    self.assertEqual(rounded.dtype, jnp.float32)
    np.testing.assert_allclose(rounded, exact, atol=0.2)

  def test_a_config_hashes_with_its_rope_scaling(self):
    config = cases.config(rope_scaling=dict(cases.LLAMA3))
    other = cases.config(rope_scaling=dict(cases.LLAMA3, factor=2.0))
    self.assertEqual(
        hash(config), hash(cases.config(rope_scaling=dict(cases.LLAMA3)))
    )
    self.assertNotEqual(config, other)

  @parameterized.parameters(
      (dict(num_kv_heads=3), 'num_kv_heads'),
      (dict(head_width=7), 'head_width'),
      (dict(activation='swish'), 'activation'),
      (dict(rope_scaling={'type': 'yarn'}), 'yarn'),
      (dict(usable_vocab=25), 'usable_vocab'),
      (dict(num_layers=0), 'num_layers'),
      (dict(rotary_width=3), 'rotary_width'),
      (dict(rotary_width=10), 'rotary_width'),
      (dict(local_layers=(2,), window=4), 'local_layers'),
      (dict(local_layers=(1,)), 'window'),
      (dict(window=4), 'local_layers'),
      (dict(local_layers=(1,), window=0), 'window'),
      (dict(logit_softcap=0.0), 'logit_softcap'),
      (dict(mixture=cases.mixture(leading_dense=2)), 'leading_dense'),
  )
  def test_a_wrong_setting_is_refused_by_name(self, changes, name):
    with self.assertRaisesRegex(ValueError, name):
      cases.config(**changes)


if __name__ == '__main__':
  absltest.main()
