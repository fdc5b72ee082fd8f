"""L10, L15, L20, G23: two passes give the gradient of one, however cut.

The one-pass gradient is written out here: one device, one array of all rows,
means over rollouts by a matrix of members, differentiated as they stand.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import passes
from rl_tpu.losses import objective
from rl_tpu.models import actor as actor_lib
from rl_tpu.rollout import batching
from rl_tpu.types import batch as batch_lib
from tests.learner import small

SETTINGS = {
    'gspo': objective.Settings(
        policy=schema.PolicyConfig(loss='gspo'),
        gspo=schema.GspoConfig(0.05, 0.08),
        loss=schema.LossConfig(aggregation='rollout_mean'),
    ),
    'seq_mis': objective.Settings(
        policy=schema.PolicyConfig(
            baseline='decoupled', correction='seq_mis', is_low=0.95,
            is_high=1.05,
        ),
    ),
    'dis': objective.Settings(
        policy=schema.PolicyConfig(loss='dis'),
        dis=schema.DisConfig(0.2, 0.3),
        loss=schema.LossConfig(
            aggregation='rollout_mean', renormalise_gated=True
        ),
    ),
}


@functools.cache
def learner(name: str, devices: int) -> learner_lib.Learner:
  return small.learner(devices, **vars(SETTINGS[name]))


def build(rows: int) -> batching.Batch:
  """Rollouts of one to four segments, in 32 rows."""
  return small.batch(
      rows, count=36, loss=schema.LossConfig(aggregation='rollout_mean')
  )


def columns(made, batch: batching.Batch):
  """Advantage, base and behaviour log-probs, close to the policy's.

  Noise goes by rollout and place in it, so that it does not depend on the
  rows.
  """
  rows = [
      made.place_rows(jax.tree.map(lambda x: x[a:b], batch.segments.rows))
      for a, b in batch.minibatches[0]
  ]
  logp_BT = np.concatenate(jax.device_get(made.logp(small.params(), rows)))
  noise = np.random.default_rng(7).normal(size=(5, len(batch.rollouts), 400))
  rollout = batch.segments.joins.rollout_BT
  pick = lambda k: noise[k, rollout, batch.time_BT]
  of_rollout = lambda k: noise[k, rollout, 0]
  base_BT = logp_BT + 0.03 * pick(1) + 0.06 * of_rollout(2)
  behaviour_BT = base_BT + 0.15 * pick(3) + 0.06 * of_rollout(4)
  return tuple(
      x.astype(np.float32) for x in (pick(0), base_BT, behaviour_BT)
  )


def microbatches(made, batch, arrays):
  """The minibatch's parts on the mesh."""
  advantage_BT, base_BT, behaviour_BT = arrays
  zero_BT = np.zeros_like(advantage_BT)
  whole = batch_lib.Minibatch(
      batch.segments.rows._replace(behaviour_logp_BT=behaviour_BT),
      advantage_BT, zero_BT, zero_BT, base_BT, zero_BT,
      batch.policy_weight_BT, zero_BT,
  )
  origin = made.place_tables(batch.segments.origin)
  return [
      made.place_rows(
          jax.tree.map(lambda x: np.asarray(x)[start:stop], whole)
      )._replace(origin=origin)
      for start, stop in batch.minibatches[0]
  ]


def one_pass(name: str, batch: batching.Batch, arrays):
  """Loss and gradient of the whole minibatch at once."""
  mask_BT = batch.policy_weight_BT > 0
  rollout = batch.segments.joins.rollout_BT[mask_BT]
  member = np.eye(len(batch.rollouts), dtype=np.float32)[rollout]
  columns = [x[mask_BT] for x in (*arrays, batch.policy_weight_BT)]
  return _one_pass(
      small.params(), batch.segments.rows, np.flatnonzero(mask_BT), member,
      columns, name=name,
  )


@functools.partial(jax.jit, static_argnames='name')
def _one_pass(params, rows, place, member, columns, *, name):
  settings = SETTINGS[name]
  advantage, base, behaviour, weight = columns
  mean_of = lambda x: member @ ((member.T @ x) / member.sum(0))

  def clipped(ratio, low, high):
    return jnp.maximum(
        -ratio * advantage, -jnp.clip(ratio, 1 - low, 1 + high) * advantage
    )

  def loss(params):
    logp_BT, _ = actor_lib.logp_and_entropy(
        params, small.MODEL, rows, temperature=1.0
    )
    logp = logp_BT.reshape(-1)[place]
    if name == 'gspo':
      s = jnp.exp(mean_of(logp - base))
      gspo = settings.gspo
      return jnp.sum(weight * clipped(s, gspo.eps_low, gspo.eps_high))
    if name == 'seq_mis':
      rho = jnp.exp(mean_of(base - behaviour))
      keep = (rho >= 0.95) & (rho <= 1.05)
      return jnp.sum(weight * keep * clipped(jnp.exp(logp - base), 0.2, 0.2))
    rho = jax.lax.stop_gradient(jnp.exp(logp - behaviour))
    keep = (rho > 0.8) & (rho < 1.3)
    # B and n_ro of the tokens that are left.
    left = member.T @ keep.astype(jnp.float32)
    of_left = keep / (jnp.sum(left > 0) * jnp.maximum(member @ left, 1.0))
    return jnp.sum(-of_left * rho * advantage * logp)

  return jax.value_and_grad(loss)(params)


class PlanTest(parameterized.TestCase):

  @parameterized.parameters('mis', 'dis')
  def test_L10_L20_weights_without_the_gated_tokens(self, gate):
    # Rollouts of 3 and 2 trained tokens and one place of padding, in two
    # microbatches; the second and fourth token are out of range.
    gated = np.asarray([0, 1, 0, 1, 0, 0], bool)
    gap = np.where(gated, np.float32(np.log(9.0)), np.float32(0.0))
    zero = np.zeros(3, np.float32)
    weight = np.asarray([0.2] * 5 + [0.0], np.float32)
    segment = np.asarray([0, 0, 0, 1, 1, -1], np.int32)
    parts, logps = [], []
    for here in (slice(0, 3), slice(3, 6)):
      row = lambda x: jnp.asarray(x[None])
      rows = batch_lib.Rows(
          row(zero.astype(np.int32)), row(zero.astype(np.int32)),
          row(segment[here]), row(weight[here] > 0), row(zero),
      )
      parts.append(
          batch_lib.Minibatch(
              rows, row(zero), row(zero), row(zero), row(gap[here]), row(zero),
              row(weight[here]), row(zero),
              origin=batch_lib.Origin(
                  jnp.asarray([0, 1, -1]), jnp.asarray([0, 0, -1])
              ),
          )
      )
      logps.append(row(gap[here]))
    policy = {'correction': 'mis', 'is_low': 0.5, 'is_high': 2.0}
    settings = objective.Settings(
        policy=schema.PolicyConfig(
            **(policy if gate == 'mis' else {'loss': 'dis'})
        ),
        loss=schema.LossConfig(
            aggregation='rollout_mean', renormalise_gated=True
        ),
    )
    plans = passes.plan(parts, logps, settings=settings)
    found = np.concatenate([np.asarray(p.weight_BT)[0] for p in plans])
    # Two rollouts, of which 2 tokens and 1 are left.
    np.testing.assert_allclose(found, [1 / 4, 0, 1 / 4, 0, 1 / 2, 0], 1e-6)

  def test_L2_L15_a_ratio_on_the_bound_is_not_clipped(self):
    # Bounds 0 and a policy that is the base: s is 1, on both of them. Two
    # tokens of one rollout, A = 3 and -1: (.5 * 3 - .5 * 1) / 2 each.
    row = lambda *x: jnp.asarray([x])
    whole, zero = row(0, 0), row(0.0, 0.0)
    part = batch_lib.Minibatch(
        batch_lib.Rows(whole, whole, whole, row(True, True), zero),
        row(3.0, -1.0), zero, zero, zero, zero, row(0.5, 0.5), zero,
        origin=batch_lib.Origin(jnp.asarray([0]), jnp.asarray([0])),
    )
    (plan,) = passes.plan(
        [part], [zero],
        settings=objective.Settings(
            policy=schema.PolicyConfig(loss='gspo'),
            gspo=schema.GspoConfig(0.0, 0.0),
        ),
    )
    np.testing.assert_allclose(plan.slope_BT, [[-0.5, -0.5]], rtol=1e-6)


class PassesTest(parameterized.TestCase):

  @parameterized.parameters(
      # One, two and four microbatches; one, two and eight devices.
      ('gspo', 1, 32), ('gspo', 2, 16), ('gspo', 8, 8),
      ('seq_mis', 2, 16), ('dis', 8, 8),
  )
  def test_L20_equals_the_one_pass_gradient(self, name, devices, rows):
    batch = build(rows)
    self.assertLen(batch.minibatches[0], 32 // rows)
    made = learner(name, devices)
    arrays = columns(made, batch)
    loss, gradient = one_pass(name, batch, arrays)
    found, stats, _, found_loss = made.actor_sums(
        small.params(), microbatches(made, batch, arrays)
    )
    np.testing.assert_allclose(found_loss, loss, rtol=1e-5, atol=1e-5)
    for a, b in zip(
        jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(gradient)
    ):
      scale = max(1.0, float(np.abs(b).max()))
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * scale)
    self.assertGreater(
        max(float(np.abs(x).max()) for x in jax.tree.leaves(gradient)), 1e-3
    )
    # Clip and gates are at work, or equality would say little.
    figure = 'clip_fraction' if name == 'gspo' else 'gated_fraction'
    self.assertBetween(float(stats[figure].mean), 0.05, 0.95)

  def test_L20_the_reduction_moves_tables_and_no_per_token_array(self):
    batch = build(16)
    made = learner('gspo', 8)
    parts = microbatches(made, batch, columns(made, batch))
    logps = tuple(made.logp(small.params(), [part.rows for part in parts]))
    text = made._plan.lower(  # pylint: disable=protected-access
        tuple(parts), logps
    ).compile().as_text()
    self.assertIn('all-reduce', text)
    for moved in ('all-gather', 'all-to-all', 'collective-permute'):
      self.assertNotIn(moved, text)

  def test_a_minibatch_without_origin_is_refused(self):
    made = learner('gspo', 1)
    batch = build(32)
    part, = microbatches(made, batch, columns(made, batch))
    with self.assertRaisesRegex(ValueError, 'origin.*L20'):
      passes.plan(
          [part._replace(origin=None)], [part.base_logp_BT],
          settings=SETTINGS['gspo'],
      )

  @parameterized.parameters(
      ({}, {}, False, False),
      ({'loss': 'dis'}, {}, False, False),
      ({'loss': 'dis'}, {'renormalise_gated': True}, True, True),
      ({'loss': 'gspo'}, {}, True, True),
      ({'correction': 'mis'}, {}, False, False),
      ({'correction': 'mis'}, {'renormalise_gated': True}, True, False),
      ({'correction': 'seq_mis'}, {}, True, False),
  )
  def test_L20_which_objectives_take_two_passes(
      self, policy, loss, needed, reads_policy
  ):
    settings = objective.Settings(
        policy=schema.PolicyConfig(**policy), loss=schema.LossConfig(**loss)
    )
    self.assertEqual(passes.needed(settings), needed)
    self.assertEqual(passes.reads_policy(settings), reads_policy)


if __name__ == '__main__':
  absltest.main()
