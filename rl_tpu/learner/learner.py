"""Scoring passes, critic and actor updates on the mesh (L17).

The learner is the only place that turns sums into a step. It loops over
microbatches of one static shape and adds their gradients up; the weights of
4.2 are already the minibatch's, so nothing is divided afterwards.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_tpu.advantages import gae
from rl_tpu.config import schema
from rl_tpu.learner import optimizers
from rl_tpu.learner import state as state_lib
from rl_tpu.losses import objective
from rl_tpu.models import actor as actor_lib
from rl_tpu.models import config as model_config
from rl_tpu.models import critic as critic_lib
from rl_tpu.models import decoder
from rl_tpu.sharding import rules
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import sums

Stats = dict[str, Any]


class Learner:
  """Jitted steps for one model, one mesh and one set of objectives."""

  def __init__(
      self,
      decoder_config: model_config.DecoderConfig,
      mesh: jax.sharding.Mesh,
      *,
      model: schema.ModelConfig,
      temperature: float,
      clip: schema.ClipConfig,
      kl: schema.KlConfig,
      loss: schema.LossConfig,
      gae_config: schema.GaeConfig,
      critic: schema.CriticConfig,
      actor_optimizer: schema.OptimizerConfig,
      critic_optimizer: schema.OptimizerConfig,
      supervised: bool = False,
  ):
    """Builds the steps; nothing is compiled before its first use.

    Args:
      decoder_config: the decoder that actor and critic share the shape of.
      mesh: axes data, fsdp, tensor.
      model: dtype, rematerialisation and logit chunk.
      temperature: the sampler's, under which all log-probabilities are.
      clip: bounds of the ratio.
      kl: KL to the reference.
      loss: aggregation and entropy bonus.
      gae_config: the recursion.
      critic: level, value clip, head bias.
      actor_optimizer: the actor's AdamW.
      critic_optimizer: the critic's AdamW.
      supervised: the actor's loss is the negative log-likelihood.
    """
    self.mesh = mesh
    self._decoder = decoder_config
    self._model = model
    self._temperature = temperature
    self._clip, self._kl, self._loss = clip, kl, loss
    self._gae, self._critic = gae_config, critic
    self._supervised = supervised
    self.actor_optimizer = optimizers.make_optimizer(actor_optimizer)
    self.critic_optimizer = optimizers.make_optimizer(critic_optimizer)
    self._rows = rules.rows_sharding(mesh)
    self._whole = rules.replicated(mesh)
    self._build()

  # --- placement ---------------------------------------------------------

  def param_shardings(self, params: Any) -> Any:
    """Where each parameter lives, by its logical axes."""
    axes = decoder.logical_axes(self._decoder)
    if 'value_head' in params:
      axes = critic_lib.logical_axes(self._decoder)
    return rules.param_shardings(axes, self.mesh, params)

  def place_rows(self, tree: Any) -> Any:
    """Puts arrays of rows on the mesh, split over data and fsdp."""
    return jax.device_put(tree, self._rows)

  def init_state(self, actor_params: Any, *, with_critic: bool) -> state_lib.TrainState:
    """The start: the critic's backbone is a copy of the actor's."""
    actor = self._trainable(actor_params, self.actor_optimizer)
    if not with_critic:
      return state_lib.TrainState(actor, None)
    critic_params = critic_lib.init_params(
        jax.tree.map(jnp.copy, actor.params), head_bias=self._critic.head_bias
    )
    critic = self._trainable(critic_params, self.critic_optimizer)
    return state_lib.TrainState(actor, critic)

  def _trainable(self, params: Any, optimizer: Any) -> state_lib.Trainable:
    for leaf in jax.tree.leaves(params):
      if leaf.dtype != jnp.float32:
        raise ValueError(
            f'master parameters must be float32, got {leaf.dtype} (L21).'
        )
    shardings = self.param_shardings(params)
    params = jax.device_put(params, shardings)
    # Moments lie where their parameters do; counters are replicated.
    places = optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, params),
        shardings,
        transform_non_params=lambda _: self._whole,
    )
    opt_state = jax.jit(optimizer.init, out_shardings=places)(params)
    return state_lib.Trainable(params, opt_state)

  # --- scoring -----------------------------------------------------------

  def value_heads(
      self, critic_params: Any, rows: Sequence[batch_lib.Rows]
  ) -> list[jax.Array]:
    """Value head of every microbatch: head_BT[q] = V_{q+1}."""
    return [self._value_head(critic_params, part) for part in rows]

  def logp(
      self, params: Any, rows: Sequence[batch_lib.Rows]
  ) -> list[jax.Array]:
    """log pi(x_p) of every microbatch, under the sampler's temperature."""
    return [self._logp(params, part) for part in rows]

  def estimate(
      self,
      joins: batch_lib.Joins,
      position_BT: jax.Array,
      heads: Sequence[jax.Array],
      kl_BT: jax.Array | None,
  ) -> tuple[batch_lib.Estimates, jax.Array]:
    """Deltas, advantages and targets of the whole batch, and V_p."""
    return self._estimate(joins, position_BT, tuple(heads), kl_BT)

  # --- updates -----------------------------------------------------------

  def update_actor(
      self,
      actor: state_lib.Trainable,
      microbatches: Sequence[batch_lib.Minibatch],
  ) -> tuple[state_lib.Trainable, Stats, optimizers.StepReport]:
    """One optimizer step of the actor; `actor` is donated."""
    return self._update(
        actor, microbatches, self._actor_gradient, self._apply_actor
    )

  def update_critic(
      self,
      critic: state_lib.Trainable,
      microbatches: Sequence[batch_lib.Minibatch],
  ) -> tuple[state_lib.Trainable, Stats, optimizers.StepReport]:
    """One optimizer step of the critic; `critic` is donated."""
    return self._update(
        critic, microbatches, self._critic_gradient, self._apply_critic
    )

  def actor_gradient(self, params: Any, microbatches: Sequence[Any]) -> Any:
    """The minibatch's summed gradient, for checks of equality."""
    return self._sum(params, microbatches, self._actor_gradient)[0]

  def critic_gradient(self, params: Any, microbatches: Sequence[Any]) -> Any:
    """The same for the critic."""
    return self._sum(params, microbatches, self._critic_gradient)[0]

  def _sum(self, params: Any, microbatches: Any, gradient: Callable[..., Any]):
    so_far = None
    for part in microbatches:
      so_far = gradient(params, part, so_far)
    return so_far

  def _update(self, trainable, microbatches, gradient, apply):
    gradients, stats, weight = self._sum(
        trainable.params, microbatches, gradient
    )
    params, opt_state, report = apply(
        trainable.params, trainable.optimizer, gradients, weight
    )
    return state_lib.Trainable(params, opt_state), stats, report

  # --- jitted bodies -----------------------------------------------------

  def _build(self) -> None:
    forward = {
        'dtype': self._model.dtype,
        'remat': self._model.remat,
    }
    score = {**forward, 'remat': False}
    logits = {
        'temperature': self._temperature,
        'logits_chunk': self._model.logits_chunk,
    }

    @jax.jit
    def value_head(params, rows):
      return critic_lib.value_head(params, self._decoder, rows, **score)

    @jax.jit
    def logp(params, rows):
      return actor_lib.logp_and_entropy(
          params, self._decoder, rows, **score, **logits
      )[0]

    def actor_loss(params, part):
      logp_BT, entropy_BT = actor_lib.logp_and_entropy(
          params, self._decoder, part.rows, **forward, **logits
      )
      if self._supervised:
        return _likelihood(logp_BT, entropy_BT, part)
      return objective.actor_terms(
          logp_BT,
          entropy_BT,
          part,
          clip=self._clip,
          kl=self._kl,
          entropy_coef=self._loss.entropy_coef,
      )

    def critic_loss(params, part):
      head_BT = critic_lib.value_head(params, self._decoder, part.rows, **forward)
      value_BT = critic_lib.align(head_BT, part.rows.position_BT)
      return objective.critic_terms(
          value_BT, part, value_clip=self._critic.value_clip
      )

    self._value_head, self._logp = value_head, logp
    self._actor_gradient = self._accumulate(actor_loss, 'policy_weight_BT')
    self._critic_gradient = self._accumulate(critic_loss, 'critic_weight_BT')
    self._apply_actor = self._apply(self.actor_optimizer)
    self._apply_critic = self._apply(self.critic_optimizer)
    self._estimate = jax.jit(
        functools.partial(_estimate, config=self._gae, level=self._critic.level)
    )

  def _accumulate(self, loss: Callable[..., Any], weights: str):
    """Gradient, statistics and weight sum, added to those so far."""

    @functools.partial(jax.jit, donate_argnums=(2,))
    def add(params, part, so_far):
      (_, stats), gradients = jax.value_and_grad(loss, has_aux=True)(
          params, part
      )
      gradients = jax.lax.with_sharding_constraint(
          gradients, self.param_shardings(params)
      )
      total, total_stats, total_weight = so_far
      return (
          jax.tree.map(jnp.add, total, gradients),
          objective.merge_stats(total_stats, stats),
          total_weight + jnp.sum(getattr(part, weights)),
      )

    @jax.jit
    def nothing(params, part):
      # One program for every microbatch: the first is added to zeros.
      _, stats = jax.eval_shape(loss, params, part)
      zeros = lambda tree: jax.tree.map(
          lambda x: jnp.zeros(x.shape, x.dtype), tree
      )
      gradients = jax.lax.with_sharding_constraint(
          zeros(params), self.param_shardings(params)
      )
      return gradients, zeros(stats), jnp.zeros((), jnp.float32)

    def call(params, part, so_far):
      so_far = nothing(params, part) if so_far is None else so_far
      return add(params, part, so_far)

    return call

  def _apply(self, optimizer: Any):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt_state, gradients, weight):
      return optimizers.apply_gradients(
          optimizer, params, opt_state, gradients, weight
      )

    return step


def _likelihood(logp_BT, entropy_BT, part):
  """Negative log-likelihood of the action tokens, under the fixed weights."""
  mask_BT = part.policy_weight_BT > 0
  clean_BT = jnp.where(mask_BT, logp_BT, 0.0)
  loss = -jnp.sum(clean_BT * part.policy_weight_BT)
  count = jnp.sum(mask_BT, dtype=jnp.float32)
  entropy = jnp.sum(jnp.where(mask_BT, entropy_BT, 0.0))
  return loss, {
      'nll': sums.TokenSum(-jnp.sum(clean_BT), count),
      'entropy': sums.TokenSum(entropy, count),
  }


def _estimate(joins, position_BT, heads, kl_BT, *, config, level):
  head_BT = jnp.concatenate(heads, axis=0)
  value_BT = critic_lib.align(head_BT, position_BT)
  flat = head_BT.reshape(-1)
  final_R = jnp.maximum(joins.final_R, 0)
  bootstrap_R = jnp.where(joins.bootstrap_R, flat[final_R], 0.0)
  estimates = gae.estimate(
      joins, value_BT, bootstrap_R, gae=config, level=level, kl_BT=kl_BT
  )
  return estimates, value_BT


def to_host(tree: Any) -> Any:
  """Fetches a pytree in one go, as numpy."""
  return jax.tree.map(np.asarray, jax.device_get(tree))

