"""KL to the reference, per token (L6; joschu.net/blog/kl-approx.html)."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.losses import ratio
from rl_tpu.types import shapes
from rl_tpu.types import token_types

ESTIMATORS = ('k1', 'k2', 'k3')


def estimate(log_ratio_BT: jax.Array, *, estimator: str) -> jax.Array:
  """k1 = x, k2 = x^2/2 or k3 = exp(-x) - 1 + x of x = log pi - log pi_ref.

  Only the exp of k3 is bounded; k1, k2 and the linear part use x itself.

  Raises:
    ValueError: an estimator that does not exist.
  """
  if estimator == 'k1':
    return log_ratio_BT
  if estimator == 'k2':
    return 0.5 * jnp.square(log_ratio_BT)
  if estimator == 'k3':
    return ratio.bounded_expm1(-log_ratio_BT) + log_ratio_BT
  raise ValueError(
      f'kl.estimator must be one of {", ".join(ESTIMATORS)}, got'
      f' {estimator!r}.'
  )


def kl_loss(
    logp_BT: jax.Array,
    reference_logp_BT: jax.Array,
    behaviour_logp_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    estimator: str,
    importance: bool,
) -> jax.Array:
  """KL term of each token for `kl.in = loss`; 0 off the mask.

  Args:
    logp_BT: log-probability under the trained parameters.
    reference_logp_BT: the same under the frozen reference; constant.
    behaviour_logp_BT: what the token was drawn with; constant. Read only with
      `importance`.
    mask_BT: True where the token is trained.
    estimator: k1, k2 or k3.
    importance: multiply by pi_theta / mu and differentiate through it.
  """
  shapes.check_shapes(
      logp_BT=logp_BT,
      reference_logp_BT=reference_logp_BT,
      behaviour_logp_BT=behaviour_logp_BT,
      mask_BT=mask_BT,
  )
  stop = jax.lax.stop_gradient
  x_BT = ratio.masked_difference(logp_BT, stop(reference_logp_BT), mask_BT)
  term_BT = estimate(x_BT, estimator=estimator)
  if importance:
    term_BT = term_BT * ratio.bounded_exp(
        ratio.masked_difference(logp_BT, stop(behaviour_logp_BT), mask_BT)
    )
  return jnp.where(mask_BT, term_BT, 0.0)


def reward_penalty(
    base_logp_BT: jax.Array,
    reference_logp_BT: jax.Array,
    *,
    coef: float | jax.Array,
) -> jax.Array:
  """coef * (log pi_base - log pi_ref), which G8 takes off the reward.

  `coef` is a number, or one for each token.
  """
  return coef * (base_logp_BT - reference_logp_BT)


def scheduled(coef: schema.objective_schema.Schedule, update: int) -> float:
  """The coefficient at an update: a constant, or points joined by lines."""
  if not isinstance(coef, tuple):
    return float(coef)
  before = [point for point in coef if point[0] <= update]
  after = [point for point in coef if point[0] > update]
  if not before:
    return float(after[0][1])
  if not after:
    return float(before[-1][1])
  (start, low), (end, high) = before[-1], after[0]
  return float(low + (high - low) * (update - start) / (end - start))


def coefficients(kl: schema.KlConfig, update: int) -> np.ndarray:
  """float32 [Y]: the coefficient of every token type at an update (L6)."""
  now = scheduled(kl.coef, update)
  factors = [kl.by_type.get(name, 1.0) for name in token_types.NAMES]
  return np.float32([now * factor for factor in factors])
