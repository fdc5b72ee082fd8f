"""The critic: the shift of values, its start, what it may read."""

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import critic
from tests.models import cases


class CriticTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.config = cases.config()
    self.actor = cases.params(self.config)
    self.params = critic.init_params(self.actor, head_bias=0.25)
    self.params['value_head']['kernel'] = jnp.linspace(-1.0, 1.0, 32)

  def values(self, rows):
    head_BT = critic.value_head(self.params, self.config, rows)
    return critic.align(head_BT, rows.position_BT)

  def test_V0_a_token_does_not_enter_the_value_before_it(self):
    ids = cases.ids(1, 12)
    before = self.values(cases.rows([ids], length=14))
    for p in (1, 5, 11):
      changed = list(ids)
      changed[p] = (ids[p] + 3) % cases.VOCAB
      after = self.values(cases.rows([changed], length=14))
      np.testing.assert_array_equal(after[0, : p + 1], before[0, : p + 1])
      if p + 1 < len(ids):
        self.assertNotEqual(float(after[0, p + 1]), float(before[0, p + 1]))

  def test_V0_align_shifts_by_one_inside_a_segment(self):
    # Two segments of 3 and 2 in one row, then padding.
    head_BT = jnp.array([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    position_BT = jnp.array([[0, 1, 2, 0, 1, 0]])
    np.testing.assert_allclose(
        critic.align(head_BT, position_BT), [[0.0, 0.1, 0.2, 0.0, 0.4, 0.0]]
    )

  def test_head_starts_at_its_bias(self):
    params = critic.init_params(self.actor, head_bias=0.27)
    rows = cases.rows([cases.ids(1, 5)], length=6)
    head_BT = critic.value_head(params, self.config, rows)
    np.testing.assert_allclose(head_BT, 0.27, rtol=1e-6)
    self.assertNotIn('lm_head', params['backbone'])

  def test_backbone_is_a_copy(self):
    # The trainer donates the actor's buffers; the critic must keep its own.
    embedding = self.actor['embed']['embedding']
    kept = np.asarray(self.params['backbone']['embed']['embedding']).copy()
    self.assertTrue(np.array_equal(kept, embedding))
    embedding.delete()
    np.testing.assert_array_equal(
        self.params['backbone']['embed']['embedding'], kept
    )

  def test_C8_no_recorded_field_beside_the_tokens_is_read(self):
    rows = cases.rows([cases.ids(1, 8)], length=10)
    other = rows._replace(
        action_mask_BT=~rows.action_mask_BT,
        behaviour_logp_BT=rows.behaviour_logp_BT - 3.0,
    )
    np.testing.assert_array_equal(self.values(rows), self.values(other))

  def test_C9_after_a_cut_only_the_new_window_is_read(self):
    # Two windows of one rollout in a row: the history that the summary in the
    # second stands for is not seen by the value there.
    window = cases.ids(2, 9)
    values = [
        self.values(cases.rows([cases.ids(seed, 10), window], length=20))
        for seed in (1, 3)
    ]
    np.testing.assert_array_equal(values[0][0, 10:], values[1][0, 10:])
    alone = self.values(cases.rows([window], length=20))
    np.testing.assert_allclose(values[0][0, 11:19], alone[0, 1:9], atol=1e-5)

  def test_axes_name_every_dimension(self):
    axes = critic.logical_axes(self.config)
    jax.tree.map(
        lambda names, p: self.assertLen(names, p.ndim),
        axes,
        self.params,
        is_leaf=lambda x: isinstance(x, tuple),
    )


if __name__ == '__main__':
  absltest.main()
