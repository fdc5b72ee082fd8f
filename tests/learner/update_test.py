"""G8, L6, L10, L13, L18, L19, L21: a batch through the updater, its report."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import statistics
from rl_tpu.sharding import compile_count
from rl_tpu.types import token_types
from tests.learner import small


KL = schema.KlConfig('loss', 'k2', ((0, 1.0), (10, 3.0)))


@functools.cache
def learner(name: str = ''):
  """One program each: without and with the KL term."""
  return small.learner(**({'kl': KL} if name == 'kl' else {}))


def reference():
  return jax.tree.map(lambda x: x * 1.05, small.params())


def state_of(made, *, with_critic=True):
  return made.init_state(small.params(), with_critic=with_critic)


class KlTest(parameterized.TestCase):

  def test_L6_a_schedule_moves_without_a_new_program(self):
    made = learner('kl')
    update = small.updater(made, kl=KL, reference=reference())
    built = small.batch()
    losses = {}
    states = [state_of(made) for _ in range(3)]
    with compile_count.CompileCounter() as compiles:
      for number, state in zip((0, 5, 10), states):
        _, report = small.step(update, state, built, update=number)
        losses[number] = report.actor['kl_loss']
        if number == 0:
          before = compiles.count
      self.assertEqual(compiles.count, before)
    self.assertGreater(losses[0], 1e-4)
    self.assertAlmostEqual(losses[5] / losses[0], 2.0, places=4)
    self.assertAlmostEqual(losses[10] / losses[0], 3.0, places=4)

  def test_G8_L6_kl_in_the_reward_by_token_type_and_update(self):
    kl = schema.KlConfig(
        'reward', '', ((0, 0.5), (4, 0.1)), by_type={'stop': 3.0}
    )
    made = small.learner(kl=kl)
    update = small.updater(made, kl=kl, reference=reference())
    built = small.batch()
    # A type on every second action.
    types_BT = np.where(
        built.time_BT % 2 == 0, token_types.STOP, token_types.TEXT
    ).astype(np.int32)
    segments = built.segments._replace(
        strata=built.segments.strata._replace(type_BT=types_BT)
    )
    rows = built.segments.rows
    found = update.score(
        state_of(made), segments, built.minibatches, update=2
    )
    actions_BT = rows.action_mask_BT
    gap_BT = rows.behaviour_logp_BT - found.reference_logp_BT
    # Half way between 0.5 and 0.1.
    coef_BT = 0.3 * np.where(types_BT == token_types.STOP, 3.0, 1.0)
    want_BT = built.segments.joins.reward_BT - coef_BT * gap_BT
    np.testing.assert_allclose(
        found.estimates.reward_BT[actions_BT], want_BT[actions_BT],
        rtol=1e-5, atol=1e-5,
    )

  def test_L19_the_report_splits_by_type_tenth_and_length(self):
    made = learner()
    built = small.batch()
    strata = built.segments.strata._replace(
        type_BT=np.where(
            built.time_BT % 2 == 0, token_types.STOP, token_types.TEXT
        ).astype(np.int32)
    )
    built = dataclasses.replace(
        built, segments=built.segments._replace(strata=strata)
    )
    _, report = small.step(small.updater(made), state_of(made), built)
    mask_BT = built.segments.joins.policy_mask_BT
    for division, ids_BT, name_of in (
        ('type', strata.type_BT, lambda k: token_types.NAMES[k]),
        ('position', strata.position_BT, str),
        ('length', strata.length_BT, lambda k: str(2**k)),
    ):
      ids, counts = np.unique(ids_BT[mask_BT], return_counts=True)
      found = {
          stratum: means['count']
          for (kind, stratum), means in report.strata.items()
          if kind == division
      }
      want = {name_of(k): count for k, count in zip(ids, counts)}
      self.assertEqual(found, want)
      self.assertGreater(len(found), 1)
    # Weighted by their counts the parts make the whole.
    parts = [m for (kind, _), m in report.strata.items() if kind == 'position']
    whole = sum(m['entropy'] * m['count'] for m in parts)
    self.assertAlmostEqual(
        whole / mask_BT.sum(), report.actor['entropy'], places=4
    )


class DecoupledTest(absltest.TestCase):

  def test_L7_L13_the_baseline_is_recomputed_and_the_gap_is_weighted(self):
    policy = schema.PolicyConfig(
        baseline='decoupled', correction='icepop', is_low=0.8, is_high=1.2
    )
    made = small.learner(policy=policy)
    update = small.updater(made, policy=policy)
    built = small.batch()
    state = state_of(made)
    scored = update.score(state, built.segments, built.minibatches)
    fresh_BT = np.concatenate(
        jax.device_get(made.logp(state.actor.params, scored.rows))
    )
    np.testing.assert_array_equal(scored.base_logp_BT, fresh_BT)
    _, report = small.step(update, state, built)
    mask_BT = built.segments.joins.policy_mask_BT
    rho = np.exp(fresh_BT - built.segments.rows.behaviour_logp_BT)[mask_BT]
    gated = np.mean((rho < 0.8) | (rho > 1.2))
    self.assertBetween(gated, 0.1, 0.9)
    self.assertAlmostEqual(report.actor['gated_fraction'], gated, places=5)
    # The ratio starts at 1: pi_theta is pi_old at the first step.
    self.assertAlmostEqual(report.actor['ratio'], 1.0, places=4)


class SourceTest(parameterized.TestCase):

  def test_L18_gradient_norms_by_source_are_backward_passes_of_their_own(self):
    made = learner()
    built = small.batch()
    joins = built.segments.joins
    source_BT = np.where(joins.rollout_BT >= 0, joins.rollout_BT % 2, -1)
    update = small.updater(made)
    scored = update.score(state_of(made), built.segments, built.minibatches)
    options = dict(
        advantage_BT=scored.estimates.advantage_BT,
        policy_weight_BT=built.policy_weight_BT,
        critic_weight_BT=built.critic_weight_BT,
        minibatches=built.minibatches,
        train_actor=True,
    )
    state, report = update.update(
        state_of(made), scored, source_BT=source_BT, **options
    )
    self.assertEqual(set(report.source_norms), {0, 1})
    for source, norm in report.source_norms.items():
      weight_BT = np.where(source_BT == source, built.policy_weight_BT, 0.0)
      alone = {**options, 'policy_weight_BT': weight_BT.astype(np.float32)}
      _, other = update.update(state_of(made), scored, **alone)
      np.testing.assert_allclose(norm, other.actor['grad_norm'], rtol=1e-4)
    # Measuring changes nothing.
    plain, report = update.update(state_of(made), scored, **options)
    self.assertEqual(report.source_norms, {})
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(plain)):
      np.testing.assert_array_equal(a, b)


class OverflowTest(absltest.TestCase):

  def test_L21_numbers_that_are_not_finite_are_counted_by_part(self):
    made = learner('kl')
    # One logit that is not finite spoils every log-probability.
    bad = small.params()
    bad['lm_head']['kernel'] = bad['lm_head']['kernel'].at[0, 5].set(jnp.nan)
    update = small.updater(made, kl=KL, reference=bad)
    built = small.batch()
    state = state_of(made)
    _, report = small.step(update, state, built)
    self.assertEqual(report.overflow['nonfinite_base'], 0)
    self.assertEqual(report.overflow['nonfinite_values'], 0)
    self.assertEqual(report.overflow['actor_nonfinite_logits'], 0)
    self.assertEqual(report.overflow['critic_nonfinite_activations'], 0)
    # A segment's first token has no log-probability.
    rows = built.segments.rows
    scored = (rows.segment_BT >= 0) & (rows.position_BT > 0)
    self.assertEqual(report.overflow['nonfinite_reference'], scored.sum())
    # The loss is not finite, and the step is not taken (L18).
    self.assertEqual(report.skipped['actor'], [0])
    self.assertEqual(report.skipped['critic'], [])
    # The KL alone is not finite, not what the actor's network gives.
    self.assertEqual(
        report.reasons,
        {'actor': [('loss', 'gradient of every parameter')], 'critic': []},
    )

  def test_L21_activations_of_actor_and_critic(self):
    made = learner()
    built = small.batch()
    bad = small.params()
    bad['embed']['embedding'] = bad['embed']['embedding'].at[5].set(jnp.inf)
    state = made.init_state(bad, with_critic=True)
    _, report = small.step(
        small.updater(made), state, built,
        advantage_BT=np.ones_like(built.policy_weight_BT),
    )
    for name in ('actor_nonfinite_activations', 'actor_nonfinite_logits',
                 'critic_nonfinite_activations', 'critic_nonfinite_logits',
                 'nonfinite_values'):
      self.assertGreater(report.overflow[name], 0, name)
    self.assertEqual(report.skipped, {'actor': [0], 'critic': [0]})
    self.assertEqual(
        report.reasons['actor'][0][:3], ('activations', 'logits', 'loss')
    )

  def test_L18_tokens_over_a_limit_are_known_by_rollout(self):
    # The limits' defaults are 10, 10 and 0.1.
    made = learner()
    built = small.batch()
    joins = built.segments.joins
    large_BT = joins.policy_mask_BT & (joins.rollout_BT == 3)
    advantage_BT = np.where(large_BT, 11.0, 0.5).astype(np.float32)
    _, report = small.step(
        small.updater(made), state_of(made), built, advantage_BT=advantage_BT
    )
    column = statistics.ROLLOUT_FIGURES.index('over_limit')
    found = report.rollouts[:, column]
    self.assertEqual(found[3], large_BT.sum())
    self.assertGreater(large_BT.sum(), 0)
    self.assertEqual(report.actor['over_advantage_count'], large_BT.sum())
    # The other rollouts have tokens over the ratio's limit only.
    self.assertEqual(
        np.delete(found, 3).sum(), report.actor['over_ratio_count']
    )


if __name__ == '__main__':
  absltest.main()
