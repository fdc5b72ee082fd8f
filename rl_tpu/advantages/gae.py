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
    is_action_BT = joins.owner_BT != -1
    reward_BT = reward_BT - jnp.where(is_action_BT, stop(kl_BT), 0.0)
  earned_BT = _to_owner(joins, reward_BT) if level == 'turn' else reward_BT
  delta_BT, policy_BT, critic_BT = _recursion(
      joins, earned_BT, value_BT, stop(bootstrap_R), gae
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
    joins, earned_BT, value_BT, bootstrap_R, gae
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """delta, A under lambda_policy and A under lambda_critic."""
  next_BT = _next_value(joins, value_BT, bootstrap_R, gae)
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
      joins, earned_BT, value_BT, bootstrap_R, gae, rates[0]
  )
  return delta_BT, policy_BT, critic_BT


def _next_value(joins, value_BT, bootstrap_R, gae) -> jax.Array:
  """gamma_j * V_{j+1}: the next transition's value, or V_N (G2, G4, G10)."""
  end_R = jnp.where(joins.bootstrap_R, bootstrap_R, 0.0)
  crossing_N = 0.0
  if gae.cut != 'cut_terminal':
    first_N = _at(value_BT, joins.first_N)
    crossing_N = first_N[jnp.maximum(joins.next_N, 0)]
  next_BT = _with_beyond(joins, value_BT, crossing_N, end_R)
  return jnp.where(joins.decay_BT, gae.gamma, 1.0) * next_BT


def _with_beyond(joins, value_BT, crossing_N, end_R) -> jax.Array:
  """The value at the next transition.

  Inside a segment it stands in the same row. What comes after a segment is a
  table: `crossing_N` where the rollout goes on, `end_R` at its end. So no
  array of tokens leaves its device.
  """
  next_BT = jnp.take_along_axis(
      value_BT, jnp.maximum(joins.next_BT, 0), axis=1,
      mode='promise_in_bounds',
  )
  end_N = end_R[jnp.maximum(joins.rollout_N, 0)]
  beyond_N = jnp.where(joins.next_N >= 0, crossing_N, end_N)
  return _set(next_BT, joins.last_N, beyond_N)


def _at(array_BT: jax.Array, place_N: jax.Array) -> jax.Array:
  """Values at flat indices; any where the index is below 0."""
  return array_BT.reshape(-1)[jnp.maximum(place_N, 0)]


def _set(array_BT, place_N, value_N) -> jax.Array:
  """Writes at flat indices; none where the index is below 0."""
  place_N = jnp.where(place_N >= 0, place_N, array_BT.size)
  flat = array_BT.reshape(-1).at[place_N].set(value_N, mode='drop')
  return flat.reshape(array_BT.shape)


def _rate(joins, gamma: float, decay: schema.LambdaConfig) -> affine.Rate:
  """gamma * lambda, of the whole batch or of each rollout (G11)."""
  if decay.length_adaptive is None:
    return affine.Rate(gamma * decay.fixed)
  lambda_R = 1.0 - 1.0 / (decay.length_adaptive * joins.decays_R)
  lambda_R = jnp.maximum(lambda_R, 0.0)
  return affine.Rate(0.0, gamma * lambda_R[jnp.maximum(joins.rollout_BT, 0)])


def _position_scaled(
    joins, earned_BT, value_BT, bootstrap_R, gae, rate
) -> tuple[jax.Array, jax.Array]:
  """Residuals and advantages of blocks of their own (G20).

  Every block ends with value 0 and, where the end is scored, with the
  terminal reward; its advantages are scaled down by what comes after it.
  """
  mask_BT = joins.transition_mask_BT
  shared_R = jnp.where(joins.bootstrap_R, 0.0, joins.score_R)
  end_R = jnp.where(joins.bootstrap_R, gae.gamma * bootstrap_R, 0.0)
  shared_N = shared_R[jnp.maximum(joins.rollout_N, 0)]
  after_BT = _with_beyond(joins, gae.gamma * value_BT, shared_N, end_R)
  delta_BT = jnp.where(mask_BT, earned_BT + after_BT - value_BT, 0.0)
  sum_BT = affine.suffix_sums(joins, delta_BT, (rate,), joined=False)[0]
  later_BT = joins.later_N[jnp.maximum(joins.segment_BT, 0)]
  factor = rate.constant if rate.value_BT is None else rate.value_BT
  scale_BT = jnp.power(factor, later_BT.astype(jnp.float32))
  return delta_BT, jnp.where(mask_BT, sum_BT * scale_BT, 0.0)


def _to_owner(joins, value_BT: jax.Array) -> jax.Array:
  """Sums values of actions at the transition that owns them (G19).

  A turn that goes on behind a cut hands its transition one sum a segment.
  """
  length = value_BT.shape[1]
  column_BT = jnp.where(joins.owner_BT >= 0, joins.owner_BT, length)
  add = lambda column_T, value_T: (
      jnp.zeros_like(value_T).at[column_T].add(value_T, mode='drop')
  )
  total_BT = jax.vmap(add)(column_BT, value_BT)
  size = len(joins.owner_N)
  is_earlier_BT = joins.owner_BT == batch_lib.EARLIER
  segment_BT = jnp.where(is_earlier_BT, joins.segment_BT, size)
  earlier_N = jnp.zeros(size, value_BT.dtype)
  earlier_N = earlier_N.at[segment_BT].add(value_BT, mode='drop')
  place_N = jnp.where(joins.owner_N >= 0, joins.owner_N, value_BT.size)
  flat = total_BT.reshape(-1).at[place_N].add(earlier_N, mode='drop')
  return flat.reshape(value_BT.shape)


def _from_owner(joins, value_BT: jax.Array) -> jax.Array:
  """Gives every action the value of its transition (G19)."""
  owner_BT = joins.owner_BT
  own_BT = jnp.take_along_axis(value_BT, jnp.maximum(owner_BT, 0), axis=1)
  earlier_N = _at(value_BT, joins.owner_N)
  earlier_BT = earlier_N[jnp.maximum(joins.segment_BT, 0)]
  own_BT = jnp.where(owner_BT == batch_lib.EARLIER, earlier_BT, own_BT)
  return jnp.where(owner_BT != -1, own_BT, 0.0)
