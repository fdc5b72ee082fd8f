"""O3: token ratios are never multiplied along a rollout; C14: sums only."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import passes
from rl_tpu.losses import objective
from rl_tpu.losses import statistics
from rl_tpu.types import batch as batch_lib

# Ratios of the four tokens of one rollout, none of them clipped or gated.
RATIO = np.asarray([[1.1, 0.95, 1.05, 0.9]], np.float32)


def minibatch(log_base=None, log_mu=None) -> batch_lib.Minibatch:
  """One rollout of four tokens, log pi = -1 each."""
  shape = RATIO.shape
  full = lambda value: np.full(shape, value, np.float32)
  base = -1.0 - np.log(RATIO) if log_base is None else log_base
  whole = np.zeros(shape, np.int32)
  return batch_lib.Minibatch(
      rows=batch_lib.Rows(
          token_BT=whole,
          position_BT=np.arange(4, dtype=np.int32)[None],
          segment_BT=whole,
          action_mask_BT=full(1).astype(bool),
          behaviour_logp_BT=base if log_mu is None else log_mu,
      ),
      advantage_BT=np.asarray([[1.0, -0.5, 2.0, 0.25]], np.float32),
      return_BT=full(0.0),
      value_BT=full(0.0),
      base_logp_BT=base,
      reference_logp_BT=full(0.0),
      policy_weight_BT=full(0.25),
      critic_weight_BT=full(0.25),
      origin=batch_lib.Origin(np.zeros(1, np.int32), np.zeros(1, np.int32)),
  )


def gradient_of(settings):
  """Minibatch -> d loss / d log pi of every token, compiled once."""

  @jax.jit
  def compiled(batch):
    logp_BT = jnp.full(RATIO.shape, -1.0)
    if passes.needed(settings):
      (plan,) = passes.plan([batch], [logp_BT], settings=settings)
      batch = batch._replace(plan=plan)
    loss = lambda logp_BT: objective.actor_terms(
        logp_BT, jnp.zeros(RATIO.shape), batch, settings=settings
    )[0]
    return jax.grad(loss)(logp_BT)

  return lambda batch: np.asarray(compiled(batch))[0]


class PerTokenRatioTest(parameterized.TestCase):

  @parameterized.parameters(
      ('ppo_clip', 'none'),
      ('dis', 'none'),
      ('cispo', 'none'),
      ('ppo_clip', 'tis'),
      ('ppo_clip', 'icepop'),
      ('ppo_clip', 'mis'),
  )
  def test_O3_a_token_is_weighed_by_its_own_ratio_alone(self, loss, fix):
    settings = objective.Settings(
        policy=schema.PolicyConfig(
            loss=loss,
            baseline='behavior' if fix == 'none' else 'decoupled',
            correction=fix,
        )
    )
    gradient = gradient_of(settings)
    before = gradient(minibatch())
    self.assertTrue((before != 0).all())
    base = -1.0 - np.log(RATIO)
    for token in range(4):
      moved = base.copy()
      moved[0, token] += 0.04
      # With a correction the gap of the sampler moves, else the baseline.
      changed = {'log_mu' if fix != 'none' else 'log_base': moved}
      if fix != 'none':
        changed['log_base'] = base
      after = gradient(minibatch(**changed))
      others = np.arange(4) != token
      np.testing.assert_array_equal(after[others], before[others])
      if fix != 'mis':  # Its weight inside the range is 1.
        self.assertNotEqual(after[token], before[token])

  def test_O3_ppo_by_hand(self):
    # -w * rho * A with w = 1/4; the product of the four ratios is 0.9875.
    found = gradient_of(objective.Settings())(minibatch())
    expected = -0.25 * RATIO[0] * np.asarray([1.0, -0.5, 2.0, 0.25])
    np.testing.assert_allclose(found, expected, rtol=1e-6)

  def test_O3_the_exception_is_a_mean_not_a_product(self):
    # Four log ratios of 0.1: GSPO's ratio is e^0.1, the product e^0.4.
    base = np.full(RATIO.shape, -1.1, np.float32)
    settings = objective.Settings(policy=schema.PolicyConfig(loss='gspo'))
    (plan,) = passes.plan(
        [minibatch(log_base=base)], [jnp.full(RATIO.shape, -1.0)],
        settings=settings,
    )
    np.testing.assert_allclose(plan.log_ratio_BT, 0.1, rtol=1e-5)

  def test_O3_seq_mis_gates_by_the_mean(self):
    # Log gaps of 0.5 each: the mean is within log 2 = 0.69, the sum is not.
    base = np.full(RATIO.shape, -1.0, np.float32)
    settings = objective.Settings(
        policy=schema.PolicyConfig(baseline='decoupled', correction='seq_mis')
    )
    gradient = gradient_of(settings)
    kept = gradient(minibatch(log_base=base, log_mu=base - 0.5))
    self.assertTrue((kept != 0).all())
    gone = gradient(minibatch(log_base=base, log_mu=base - 0.7))
    np.testing.assert_array_equal(gone, 0.0)


class StrataTest(absltest.TestCase):

  def test_O1_effective_sample_size_by_length(self):
    # Two tokens of a short rollout with ratios 2 and 1, two of a long one
    # with ratios 1 and 1: (2 + 1)^2 / (2 * 5) and 1.
    base = -1.0 - np.log(np.asarray([[2.0, 1.0, 1.0, 1.0]], np.float32))
    length = np.asarray([[1, 1, 5, 5]], np.int32)
    batch = minibatch(log_base=base)._replace(
        strata=batch_lib.Strata(length, length, length)
    )
    _, stats = jax.jit(
        lambda logp_BT: objective.actor_terms(
            logp_BT, jnp.zeros(RATIO.shape), batch,
            settings=objective.Settings(),
        )
    )(jnp.full(RATIO.shape, -1.0))
    found = statistics.strata_values(stats['strata_table'])
    self.assertAlmostEqual(found['length', '2']['ess_share'], 0.9, places=6)
    self.assertAlmostEqual(found['length', '32']['ess_share'], 1.0, places=6)
    self.assertNotIn('ratio_squared', found['length', '2'])


class SumsOnlyTest(absltest.TestCase):

  def shapes(self, rows: int, length: int):
    column = jax.ShapeDtypeStruct((rows, length), jnp.float32)
    whole = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    flag = jax.ShapeDtypeStruct((rows, length), bool)
    table = jax.ShapeDtypeStruct((16,), jnp.int32)
    part = batch_lib.Minibatch(
        rows=batch_lib.Rows(whole, whole, whole, flag, column),
        advantage_BT=column,
        return_BT=column,
        value_BT=column,
        base_logp_BT=column,
        reference_logp_BT=column,
        policy_weight_BT=column,
        critic_weight_BT=column,
        strata=batch_lib.Strata(whole, whole, whole),
        origin=batch_lib.Origin(table, table),
    )
    actor = lambda logp_BT, entropy_BT, part: objective.actor_terms(
        logp_BT, entropy_BT, part, settings=objective.Settings()
    )
    critic = lambda value_BT, part: objective.critic_terms(
        value_BT, part, critic=schema.CriticConfig()
    )
    found = (
        jax.eval_shape(actor, column, column, part),
        jax.eval_shape(critic, column, part),
    )
    return jax.tree.map(lambda x: x.shape, found)

  def test_C14_what_leaves_the_step_does_not_grow_with_the_tokens(self):
    small, large = self.shapes(2, 8), self.shapes(64, 512)
    self.assertEqual(jax.tree.leaves(small), jax.tree.leaves(large))
    self.assertEqual(
        jax.tree.structure(small), jax.tree.structure(large)
    )


if __name__ == '__main__':
  absltest.main()
