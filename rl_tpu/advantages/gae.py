"""Generalised advantage estimation over action tokens, across cuts (section 3).

The recursion

    delta_j = r_j + gamma_j V_{j+1} - V_j
    A_j     = delta_j + gamma_j lambda_j A_{j+1}

runs over the transitions of a rollout in time order, wherever its segments
are packed (1506.02438; G1, G2, G9). It is affine in what comes after a
segment, so `affine` works it out in two levels: rows are scanned locally, and
the few numbers of each segment are followed along its rollout.
"""

import jax
import jax.numpy as jnp

from rl_tpu.advantages import affine
from rl_tpu.config import schema
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import shapes

CUTS = ('continue', 'reset_trace', 'cut_terminal', 'position_scaled')


def estimate(
    joins: batch_lib.Joins,
    value_BT: jax.Array,
    bootstrap_R: jax.Array,
    *,
    gae: schema.GaeConfig,
    level: str,
    kl_BT: jax.Array | None = None,
) -> batch_lib.Estimates:
  """Residuals, advantages and critic targets of a whole batch.

  Args:
    joins: how positions follow each other.
    value_BT: V_p, the value of the state before each token. Read at
      transitions only; it may be NaN elsewhere (G26).
    bootstrap_R: value after the last action of each rollout. Read where
      `joins.bootstrap_R`.
    gae: discount, time unit, both lambdas, treatment of cuts.
    level: critic.level, token or turn (G19).
    kl_BT: kl.coef * (log pi_base - log pi_ref) of each token, taken off the
      reward of its action (G8). None takes nothing off.

  Returns:
    Estimates, exactly 0 off the actions; constants for the gradient.
  """
  shapes.check_shapes(
      value_BT=value_BT,
      bootstrap_R=bootstrap_R,
      kl_BT=kl_BT,
      reward_BT=joins.reward_BT,
      final_R=joins.final_R,
  )
  stop = jax.lax.stop_gradient
  value_BT = stop(value_BT).astype(jnp.float32)
  reward_BT = joins.reward_BT
  if kl_BT is not None:
    is_action_BT = joins.owner_BT >= 0
    reward_BT = reward_BT - jnp.where(is_action_BT, stop(kl_BT), 0.0)
  earned_BT = _to_owner(joins, reward_BT) if level == 'turn' else reward_BT
  next_BT = _next_value(joins, value_BT, stop(bootstrap_R), gae)
  delta_BT, policy_BT, critic_BT = _recursion(
      joins, earned_BT, next_BT, value_BT, gae
  )
  return_BT = jnp.where(
      joins.transition_mask_BT, critic_BT + value_BT, 0.0
  )
  if level == 'turn':
    delta_BT = _from_owner(joins, delta_BT)
    policy_BT = _from_owner(joins, policy_BT)
  return batch_lib.Estimates(
      delta_BT=delta_BT,
      advantage_BT=policy_BT,
      return_BT=return_BT,
      reward_BT=reward_BT,
  )


def _recursion(
    joins, earned_BT, next_BT, value_BT, gae
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """delta, A under lambda_policy and A under lambda_critic."""
  delta_BT = jnp.where(
      joins.transition_mask_BT, earned_BT + next_BT - value_BT, 0.0
  )
  rates = (
      _rate(joins, gae.gamma, gae.lambda_policy),
      _rate(joins, gae.gamma, gae.lambda_critic),
  )
  if gae.cut != 'position_scaled':
    policy_BT, critic_BT = affine.suffix_sums(
        joins, delta_BT, rates, joined=gae.cut == 'continue'
    )
    return delta_BT, policy_BT, critic_BT
  critic_BT = affine.suffix_sums(joins, delta_BT, rates[1:], joined=True)[0]
  delta_BT, policy_BT = _position_scaled(
      joins, earned_BT, next_BT, value_BT, rates[0]
  )
  return delta_BT, policy_BT, critic_BT


def _next_value(joins, value_BT, bootstrap_R, gae) -> jax.Array:
  """gamma_j * V_{j+1}: the next transition's value, or V_N (G2, G4, G10)."""
  inside = 'promise_in_bounds'
  next_BT = value_BT.reshape(-1).at[jnp.maximum(joins.next_BT, 0)].get(
      mode=inside
  )
  end_R = jnp.where(joins.bootstrap_R, bootstrap_R, 0.0)
  end_BT = end_R.at[jnp.maximum(joins.rollout_BT, 0)].get(mode=inside)
  next_BT = jnp.where(joins.next_BT >= 0, next_BT, end_BT)
  if gae.cut == 'cut_terminal':
    next_BT = jnp.where(_crosses(joins), 0.0, next_BT)
  return jnp.where(joins.decay_BT, gae.gamma, 1.0) * next_BT


def _rate(joins, gamma: float, decay: schema.LambdaConfig) -> affine.Rate:
  """gamma * lambda, of the whole batch or of each rollout (G11)."""
  if decay.length_adaptive is None:
    return affine.Rate(gamma * decay.fixed)
  lambda_R = 1.0 - 1.0 / (decay.length_adaptive * joins.decays_R)
  lambda_R = jnp.maximum(lambda_R, 0.0)
  return affine.Rate(0.0, gamma * lambda_R[jnp.maximum(joins.rollout_BT, 0)])


def _crosses(joins) -> jax.Array:
  """The next transition is in another segment of the rollout (G20)."""
  ordinal_BT = affine.segment_ordinals(joins)
  next_BT = ordinal_BT.reshape(-1)[jnp.maximum(joins.next_BT, 0)]
  return (joins.next_BT >= 0) & (next_BT != ordinal_BT)


def _position_scaled(
    joins, earned_BT, next_BT, value_BT, rate
) -> tuple[jax.Array, jax.Array]:
  """Residuals and advantages of blocks of their own (G20).

  Every block ends with value 0 and, where the end is scored, with the
  terminal reward; its advantages are scaled down by what comes after it.
  """
  mask_BT = joins.transition_mask_BT
  rollout_BT = jnp.maximum(joins.rollout_BT, 0)
  shared_R = jnp.where(joins.bootstrap_R, 0.0, joins.score_R)
  after_BT = jnp.where(_crosses(joins), shared_R[rollout_BT], next_BT)
  delta_BT = jnp.where(mask_BT, earned_BT + after_BT - value_BT, 0.0)
  sum_BT = affine.suffix_sums(joins, delta_BT, (rate,), joined=False)[0]
  ordinal_BT = affine.segment_ordinals(joins)
  later_N = affine.by_ordinal(joins, ordinal_BT, joins.later_N)
  factor = rate.constant if rate.value_BT is None else rate.value_BT
  scale_BT = jnp.power(factor, later_N[ordinal_BT].astype(jnp.float32))
  return delta_BT, jnp.where(mask_BT, sum_BT * scale_BT, 0.0)


def _to_owner(joins, value_BT: jax.Array) -> jax.Array:
  """Sums values of actions at the transition that owns them (G19)."""
  owner = jnp.where(joins.owner_BT >= 0, joins.owner_BT, value_BT.size)
  total = jnp.zeros(value_BT.size, value_BT.dtype)
  total = total.at[owner.reshape(-1)].add(value_BT.reshape(-1), mode='drop')
  return total.reshape(value_BT.shape)


def _from_owner(joins, value_BT: jax.Array) -> jax.Array:
  """Gives every action the value of its transition (G19)."""
  spread_BT = value_BT.reshape(-1)[jnp.maximum(joins.owner_BT, 0)]
  return jnp.where(joins.owner_BT >= 0, spread_BT, 0.0)
