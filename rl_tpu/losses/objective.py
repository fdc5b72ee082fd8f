"""What one microbatch adds to the actor's and to the critic's objective.

Both functions return sums under fixed weights, and statistics
(`losses.statistics`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.losses import correction as correction_lib
from rl_tpu.losses import hl_gauss
from rl_tpu.losses import kl as kl_lib
from rl_tpu.losses import policy as policy_lib
from rl_tpu.losses import statistics
from rl_tpu.losses import value as value_lib
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import sums
from rl_tpu.types import token_types

Stats = statistics.Stats

LOSSES = ('ppo_clip', 'dis', 'gspo', 'cispo')


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the actor's objective is made of (section 4)."""

  policy: schema.PolicyConfig = schema.PolicyConfig()
  clip: schema.ClipConfig = schema.ClipConfig()
  dis: schema.DisConfig = schema.DisConfig()
  gspo: schema.GspoConfig = schema.GspoConfig()
  cispo: schema.CispoConfig = schema.CispoConfig()
  loss: schema.LossConfig = schema.LossConfig()
  kl: schema.KlConfig = schema.KlConfig()
  limits: schema.LimitsConfig = schema.LimitsConfig()

  @classmethod
  def of(cls, config: schema.ExperimentConfig) -> 'Settings':
    """The sections of an experiment that this room reads."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: getattr(config, name) for name in names})


def actor_terms(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    minibatch: batch_lib.Minibatch,
    *,
    settings: Settings,
) -> tuple[jax.Array, Stats]:
  """Weighted loss of a microbatch: policy term, KL to the reference, entropy.

  Args:
    logp_BT: log-probability of each token under the trained parameters.
    entropy_BT: entropy of the distribution it was drawn from (L5).
    minibatch: rows, advantages and weights; where the weight is 0 nothing is
      read. Two-pass objectives need its plan (L20).
    settings: the objective.

  Returns:
    The sum of weight * loss, and statistics.
  """
  parts, tokens = _actor_parts(logp_BT, entropy_BT, minibatch, settings)
  # The same sum by logp alone: what each token's log-probability is pulled
  # with. Elementwise, so it costs little beside the model.
  slope_BT = jax.grad(
      lambda x_BT: _total(
          _actor_parts(x_BT, entropy_BT, minibatch, settings)[0]
      )
  )(jax.lax.stop_gradient(logp_BT))
  tokens = tokens._replace(proxy_BT=jnp.abs(slope_BT))
  loss = _total(parts)
  has_reference = settings.kl.in_ != 'none'
  stats = statistics.of_actor(
      tokens, minibatch, limits=settings.limits, has_reference=has_reference
  )
  weight_BT = minibatch.policy_weight_BT
  # Sums under weights that add up to 1 over the minibatch (token mode): the
  # weights are their denominator.
  weight = sums.weighted_sum(jnp.ones_like(weight_BT), weight_BT)
  for name, total in {**parts, 'loss': loss}.items():
    stats[name] = sums.TokenSum(total, weight)
  kept = sums.weighted_sum(jnp.where(tokens.gated_BT, 0.0, 1.0), weight_BT)
  stats['effective_share'] = sums.TokenSum(kept, weight)
  return loss, jax.lax.stop_gradient(stats)


def _total(parts: dict[str, jax.Array]) -> jax.Array:
  return sum(parts.values())


def _actor_parts(logp_BT, entropy_BT, minibatch, settings):
  """Weighted sums by name, and what statistics read of every token."""
  mask_BT = minibatch.policy_weight_BT > 0
  plan = minibatch.plan or batch_lib.Plan()
  weight_BT = plan.weight_BT
  if weight_BT is None:
    weight_BT = minibatch.policy_weight_BT
  terms = _policy_terms(logp_BT, minibatch, plan, mask_BT, settings)
  fix_BT = _correction(minibatch, plan, mask_BT, settings.policy)
  gated_BT = terms.gated_BT | ((fix_BT == 0) & mask_BT)
  loss_BT = jnp.where(gated_BT, 0.0, terms.loss_BT * fix_BT)
  policy = sums.weighted_sum(loss_BT, weight_BT)
  if plan.slope_BT is not None:
    # The value is the clipped term, the gradient the plan's (L20).
    clean_BT = jnp.where(mask_BT, logp_BT, 0.0)
    still_BT = jax.lax.stop_gradient(clean_BT)
    slope_BT = jnp.where(mask_BT, plan.slope_BT, 0.0)
    policy = policy + jnp.sum(slope_BT * (clean_BT - still_BT))
  parts = {'policy_loss': policy}
  entropy_BT = jnp.where(mask_BT, entropy_BT, 0.0)
  kl = settings.kl
  if kl.in_ == 'loss':
    kl_BT = kl_lib.kl_loss(
        logp_BT,
        minibatch.reference_logp_BT,
        minibatch.rows.behaviour_logp_BT,
        mask_BT,
        estimator=kl.estimator or 'k2',
        importance=kl.importance,
    )
    coef_BT = by_type(_kl_coef(minibatch, kl), minibatch.strata, mask_BT)
    parts['kl_loss'] = sums.weighted_sum(coef_BT * kl_BT, weight_BT)
  coefs = entropy_coefs(settings.loss)
  if any(coefs):
    coef_BT = by_type(jnp.asarray(coefs), minibatch.strata, mask_BT)
    parts['entropy_loss'] = sums.weighted_sum(-coef_BT * entropy_BT, weight_BT)
  tokens = statistics.Tokens(
      mask_BT=mask_BT,
      logp_BT=logp_BT,
      entropy_BT=entropy_BT,
      terms=terms,
      gated_BT=gated_BT,
      proxy_BT=jnp.zeros_like(entropy_BT),
  )
  return parts, tokens


def _policy_terms(logp_BT, minibatch, plan, mask_BT, settings):
  """Loss and flags of every token under `policy.loss`."""
  advantage_BT = minibatch.advantage_BT
  kind = settings.policy.loss
  if kind == 'ppo_clip':
    return policy_lib.clipped_loss(
        logp_BT,
        minibatch.base_logp_BT,
        advantage_BT,
        mask_BT,
        clip=settings.clip,
    )
  if kind == 'dis':
    return policy_lib.dis_loss(
        logp_BT,
        minibatch.rows.behaviour_logp_BT,
        advantage_BT,
        mask_BT,
        dis=settings.dis,
    )
  if kind == 'cispo':
    return policy_lib.cispo_loss(
        logp_BT,
        minibatch.base_logp_BT,
        advantage_BT,
        mask_BT,
        cispo=settings.cispo,
    )
  if kind != 'gspo':
    raise ValueError(
        f'policy.loss must be one of {", ".join(LOSSES)}, got {kind!r}.'
    )
  if plan.log_ratio_BT is None:
    raise ValueError(
        "policy.loss='gspo': the rollout's mean log ratio is missing; the"
        ' minibatch has no plan of the first pass (L20).'
    )
  return policy_lib.gspo_loss(
      plan.log_ratio_BT, advantage_BT, mask_BT, gspo=settings.gspo
  )


def _correction(minibatch, plan, mask_BT, policy) -> jax.Array:
  """Weight of L13 on every token's policy term."""
  if plan.correction_BT is not None:
    return jnp.where(mask_BT, plan.correction_BT, 1.0)
  if policy.correction == 'none':
    return jnp.ones(mask_BT.shape, jnp.float32)
  if policy.correction == 'seq_mis':
    raise ValueError(
        "policy.correction='seq_mis': the mean over the rollout is missing;"
        ' the minibatch has no plan of the first pass (L20).'
    )
  gap_BT = correction_lib.log_gap(
      minibatch.base_logp_BT, minibatch.rows.behaviour_logp_BT, mask_BT
  )
  return correction_lib.weigh(gap_BT, mask_BT, policy=policy).weight_BT


def _kl_coef(minibatch: batch_lib.Minibatch, kl: schema.KlConfig) -> jax.Array:
  if minibatch.kl_coef_Y is not None:
    return minibatch.kl_coef_Y
  return jnp.asarray(kl_lib.coefficients(kl, 0))


def entropy_coefs(loss: schema.LossConfig) -> tuple[float, ...]:
  """Weight of the entropy bonus by token type (L5)."""
  return tuple(
      float(loss.entropy_by_type.get(name, loss.entropy_coef))
      for name in token_types.NAMES
  )


def by_type(
    value_Y: jax.Array, strata: batch_lib.Strata | None, mask_BT: jax.Array
) -> jax.Array:
  """The entry of each trained token's type; text where types are unknown."""
  if strata is None:
    return jnp.broadcast_to(value_Y[token_types.TEXT], mask_BT.shape)
  return value_Y[jnp.where(mask_BT, strata.type_BT, token_types.TEXT)]


def critic_terms(
    value_BT: jax.Array,
    minibatch: batch_lib.Minibatch,
    *,
    critic: schema.CriticConfig,
    logits_BTM: jax.Array | None = None,
) -> tuple[jax.Array, Stats]:
  """Weighted value loss of a microbatch, and statistics (L4, C11).

  Args:
    value_BT: value of the state before each token, under training.
    minibatch: targets and weights.
    critic: value clip, or the bins.
    logits_BTM: of the bins, with critic.head = hl_gauss.
  """
  weight_BT = minibatch.critic_weight_BT
  mask_BT = weight_BT > 0
  if critic.head == 'hl_gauss':
    terms = hl_gauss.loss(
        logits_BTM, value_BT, minibatch.return_BT, mask_BT, critic=critic
    )
  else:
    terms = value_lib.value_loss(
        value_BT,
        minibatch.value_BT,
        minibatch.return_BT,
        mask_BT,
        value_clip=critic.value_clip,
    )
  loss = sums.weighted_sum(terms.loss_BT, weight_BT)
  stats = {
      'loss': sums.TokenSum(
          loss, sums.weighted_sum(jnp.ones_like(weight_BT), weight_BT)
      ),
      'clip_fraction': sums.masked_sum(terms.clipped_BT, mask_BT),
      'bias': sums.masked_sum(terms.error_BT, mask_BT),
      'mse': sums.masked_sum(jnp.square(terms.error_BT), mask_BT),
      'value': sums.masked_sum(value_BT, mask_BT),
      'return': sums.masked_sum(minibatch.return_BT, mask_BT),
  }
  return loss, jax.lax.stop_gradient(stats)
