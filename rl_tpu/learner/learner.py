"""Scoring passes, critic and actor updates on the mesh (L17).

The learner is the only place that turns sums into a step. It loops over
microbatches of one static shape and adds their gradients up; the weights of
4.2 are already the minibatch's, so nothing is divided afterwards.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rl_tpu.advantages import gae
from rl_tpu.config import schema
from rl_tpu.learner import freezing
from rl_tpu.learner import networks as networks_lib
from rl_tpu.learner import optimizers
from rl_tpu.learner import passes
from rl_tpu.learner import residence as residence_lib
from rl_tpu.learner import state as state_lib
from rl_tpu.losses import objective as objective_lib
from rl_tpu.losses import statistics
from rl_tpu.models import config as model_config
from rl_tpu.models import critic as critic_lib
from rl_tpu.models import lora
from rl_tpu.sharding import placement
from rl_tpu.sharding import rules
from rl_tpu.types import batch as batch_lib

Stats = dict[str, Any]
# Gradient, statistics, weight sum and loss of the microbatches so far.
_SoFar = tuple[Any, Stats, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Gradient:
  """Gradient, statistics, weight sum and loss of microbatches.

  Attributes:
    start: jitted, zeros of the right shapes.
    add: jitted, adds a microbatch's; donates what it adds to.
  """

  start: Callable[..., _SoFar]
  add: Callable[..., _SoFar]

  def __call__(
      self, params: Any, base: Any, part: batch_lib.Minibatch, so_far: Any
  ) -> _SoFar:
    """The sums with one more microbatch; None starts them."""
    if so_far is None:
      so_far = placement.in_order(self.start(params, base, part))
    return placement.in_order(self.add(params, base, part, so_far))


@dataclasses.dataclass(frozen=True)
class Functions:
  """The jitted functions of a learner, for whoever compiles them ahead.

  Attributes:
    values: critic parameters and rows to head_BT.
    logp: actor parameters and rows to logp_BT.
    reference_logp: the same of the reference.
    estimate: joins, positions, heads and KL to estimates and V_p.
    plan: microbatches and log-probs to their plans; None for one pass.
    actor: gradient and step of the actor.
    critic: the same of the critic.
  """

  values: Callable[..., jax.Array]
  logp: Callable[..., jax.Array]
  reference_logp: Callable[..., jax.Array]
  estimate: Callable[..., tuple[batch_lib.Estimates, jax.Array]]
  plan: Callable[..., Any] | None
  actor: tuple[Gradient, Callable[..., Any]]
  critic: tuple[Gradient, Callable[..., Any]]


class Learner:
  """Jitted steps for one model, one mesh and one set of objectives."""

  def __init__(
      self,
      decoder_config: model_config.DecoderConfig,
      mesh: jax.sharding.Mesh,
      *,
      model: schema.ModelConfig,
      temperature: float,
      objective: objective_lib.Settings,
      gae_config: schema.GaeConfig,
      critic: schema.CriticConfig,
      actor_optimizer: schema.OptimizerConfig,
      critic_optimizer: schema.OptimizerConfig,
      memory: schema.MemoryConfig = schema.MemoryConfig(),
      supervised: bool = False,
  ):
    """Builds the steps; nothing is compiled before its first use.

    Args:
      decoder_config: the decoder that actor and critic share the shape of.
      mesh: axes data, fsdp, tensor.
      model: dtype, rematerialisation and logit chunk.
      temperature: the sampler's, under which all log-probabilities are.
      objective: the actor's objective.
      gae_config: the recursion.
      critic: level, head, sharing, value clip, frozen parameters.
      actor_optimizer: the actor's AdamW.
      critic_optimizer: the critic's AdamW.
      memory: where what is idle waits.
      supervised: the actor's loss is the negative log-likelihood.
    """
    self.mesh = mesh
    self.residence = residence_lib.Residence(memory)
    self._gae, self._critic = gae_config, critic
    self._objective = objective
    self._networks = networks_lib.Networks(
        decoder=decoder_config,
        model=model,
        temperature=temperature,
        objective=objective,
        critic=critic,
        mesh=mesh,
    )
    self._shares = critic.sharing == 'shared_backbone'
    self._adapts = decoder_config.lora is not None
    self._two_passes = passes.needed(objective) and not supervised
    self.actor_optimizer = optimizers.make_optimizer(actor_optimizer)
    self.critic_optimizer = optimizers.make_optimizer(
        critic_optimizer, freeze=critic.freeze
    )
    self._rows = rules.rows_sharding(mesh)
    self._whole = rules.replicated(mesh)
    self._build(supervised, actor_optimizer, critic_optimizer)

  # --- placement ---------------------------------------------------------

  def param_shardings(self, params: Any) -> Any:
    """Where each parameter lives, by its logical axes.

    Args:
      params: of a network, or a part of them.
    """
    axes = _part(self._networks.logical_axes(params), params)
    return rules.param_shardings(axes, self.mesh, params)

  def place_rows(self, tree: Any) -> Any:
    """Puts arrays of rows on the mesh, split over data and fsdp."""
    return placement.put(tree, self._rows)

  def place_tables(self, tree: Any) -> Any:
    """Puts small arrays on every device."""
    return placement.put(tree, self._whole)

  def init_state(
      self, actor_params: Any, *, with_critic: bool
  ) -> state_lib.TrainState:
    """The start: the critic's backbone is a copy of the actor's, or shared.

    The state takes `actor_params` over: an update donates them.
    """
    parts = self.start_params(actor_params, with_critic=with_critic)
    actor = self._trainable(parts.actor, self.actor_optimizer)
    critic = None
    if parts.critic is not None:
      critic = self._trainable(parts.critic, self.critic_optimizer)
      critic = critic._replace(
          params=self.residence.store('critic', critic.params)
      )
    base = parts.base
    if base is not None:
      base = jax.device_put(base, self.param_shardings(base))
    return state_lib.TrainState(actor, critic, base)

  def start_params(
      self, actor_params: Any, *, with_critic: bool
  ) -> state_lib.TrainState:
    """The parameters of the start alone, in the places of a state."""
    if with_critic and self._shares:
      actor_params = self._networks.with_head(actor_params)
    base, actor = self._taken_apart(actor_params)
    if not with_critic or self._shares:
      return state_lib.TrainState(actor, None, base)
    copy = jax.tree.map(jnp.copy, actor)
    critic = self._networks.critic_params(lora.join(base, copy))
    _, critic = self._taken_apart(critic)
    freezing.check(critic, self._critic.freeze, setting='critic.freeze')
    return state_lib.TrainState(actor, critic, base)

  def _taken_apart(self, params: Any) -> tuple[Any | None, Any]:
    """The frozen base, if there is one, and what is trained."""
    if not self._adapts:
      return None, params
    return lora.split(params, networks_lib.HEAD)

  def _trainable(self, params: Any, optimizer: Any) -> state_lib.Trainable:
    for leaf in jax.tree.leaves(params):
      if leaf.dtype != jnp.float32:
        raise ValueError(
            f'master parameters must be float32, got {leaf.dtype} (L21).'
        )
    shardings = self.param_shardings(params)
    params = jax.device_put(params, shardings)
    places = self.optimizer_shardings(params, optimizer)
    opt_state = jax.jit(optimizer.init, out_shardings=places)(params)
    opt_state = self.residence.store('optimizers', opt_state)
    return state_lib.Trainable(params, opt_state)

  def optimizer_shardings(self, params: Any, optimizer: Any) -> Any:
    """Where each array of an optimizer's state lives.

    Moments lie where their parameters do; counters are replicated. A frozen
    parameter has no moments (C10).
    """
    is_frozen = lambda leaf: isinstance(leaf, optax.MaskedNode)
    return optax.tree_utils.tree_map_params(
        optimizer,
        lambda leaf, sharding: leaf if is_frozen(leaf) else sharding,
        jax.eval_shape(optimizer.init, params),
        self.param_shardings(params),
        transform_non_params=lambda _: self._whole,
        is_leaf=is_frozen,
    )

  # --- scoring -----------------------------------------------------------

  def value_heads(
      self, critic_params: Any, rows: Sequence[batch_lib.Rows]
  ) -> list[jax.Array]:
    """Value of the state after every token: head_BT[q] = V_{q+1}."""
    critic_params = self.residence.fetch('critic', critic_params)
    return [
        placement.in_order(self._values(critic_params, part)) for part in rows
    ]

  def logp(
      self, params: Any, rows: Sequence[batch_lib.Rows]
  ) -> list[jax.Array]:
    """log pi(x_p) of every microbatch, under the sampler's temperature."""
    return [placement.in_order(self._logp(params, part)) for part in rows]

  def reference_logp(
      self, params: Any, rows: Sequence[batch_lib.Rows]
  ) -> list[jax.Array]:
    """The same of the reference, which has no adapters."""
    params = self.residence.fetch('reference', params)
    return [
        placement.in_order(self._reference_logp(params, part)) for part in rows
    ]

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
      base: Any | None = None,
  ) -> tuple[state_lib.Trainable, Stats, optimizers.StepReport]:
    """One optimizer step of the actor; `actor` is donated, `base` is not.

    With a shared backbone the value loss is part of it, and statistics of the
    critic carry its name.
    """
    gradients = self.actor_sums(actor.params, microbatches, base)
    return self._take(actor, gradients, self._apply_actor)

  def update_critic(
      self,
      critic: state_lib.Trainable,
      microbatches: Sequence[batch_lib.Minibatch],
      base: Any | None = None,
  ) -> tuple[state_lib.Trainable, Stats, optimizers.StepReport]:
    """One optimizer step of the critic; `critic` is donated, `base` is not."""
    critic = critic._replace(
        params=self.residence.fetch('critic', critic.params)
    )
    gradients = self.critic_sums(critic.params, microbatches, base)
    critic, *rest = self._take(critic, gradients, self._apply_critic)
    params = self.residence.store('critic', critic.params)
    return critic._replace(params=params), *rest

  def actor_sums(
      self,
      params: Any,
      microbatches: Sequence[batch_lib.Minibatch],
      base: Any | None = None,
  ) -> _SoFar:
    """The minibatch's gradient, statistics, weight sum and loss.

    Args:
      params: what the gradient is by.
      microbatches: rows of the minibatch.
      base: frozen parameters below adapters, if there are any.
    """
    parts = self.planned(lora.join(base, params), microbatches)
    return self._sum(params, parts, self._actor_gradient, base)

  def critic_sums(
      self,
      params: Any,
      microbatches: Sequence[batch_lib.Minibatch],
      base: Any | None = None,
  ) -> _SoFar:
    """The same of the critic."""
    return self._sum(params, microbatches, self._critic_gradient, base)

  def actor_gradient(self, params: Any, microbatches: Sequence[Any]) -> Any:
    """The minibatch's summed gradient, for checks of equality."""
    return self.actor_sums(params, microbatches)[0]

  def critic_gradient(self, params: Any, microbatches: Sequence[Any]) -> Any:
    """The same for the critic."""
    return self.critic_sums(params, microbatches)[0]

  def planned(
      self, params: Any, microbatches: Sequence[batch_lib.Minibatch]
  ) -> list[batch_lib.Minibatch]:
    """The microbatches with the first pass of two done (L20)."""
    if not self._two_passes:
      return list(microbatches)
    logps = None
    if self.reads_policy:
      policy = networks_lib.policy_params(params)
      logps = tuple(self.logp(policy, [part.rows for part in microbatches]))
    plans = placement.in_order(self._plan(tuple(microbatches), logps))
    return [p._replace(plan=plan) for p, plan in zip(microbatches, plans)]

  def gradient_norm(
      self,
      params: Any,
      microbatches: Sequence[batch_lib.Minibatch],
      base: Any | None = None,
  ) -> jax.Array:
    """Norm of the actor's gradient of planned microbatches (L18)."""
    sums = self._sum(params, microbatches, self._actor_gradient, base)
    return self._norm(sums[0])

  def _sum(self, params, microbatches, gradient: Callable[..., Any], base):
    so_far = None
    for part in microbatches:
      so_far = gradient(params, base, part, so_far)
    return so_far

  def _take(self, trainable, sums: _SoFar, apply):
    gradients, stats, weight, loss = sums
    moments = self.residence.fetch('optimizers', trainable.optimizer)
    params, moments, report = placement.in_order(
        apply(trainable.params, moments, gradients, weight, loss)
    )
    opt_state = self.residence.store('optimizers', moments)
    return state_lib.Trainable(params, opt_state), stats, report

  # --- jitted bodies -----------------------------------------------------

  @property
  def reads_policy(self) -> bool:
    """The first of two passes reads the policy's log-probs (L20)."""
    return self._two_passes and passes.reads_policy(self._objective)

  @property
  def functions(self) -> Functions:
    """What the methods above call."""
    return Functions(
        values=self._values,
        logp=self._logp,
        reference_logp=self._reference_logp,
        estimate=self._estimate,
        plan=self._plan if self._two_passes else None,
        actor=(self._actor_gradient, self._apply_actor),
        critic=(self._critic_gradient, self._apply_critic),
    )

  def _build(self, supervised: bool, actor_optimizer, critic_optimizer) -> None:
    networks = self._networks
    self._values = jax.jit(networks.values)
    self._logp = jax.jit(networks.logp)
    self._reference_logp = self._logp
    if self._adapts:
      plain = dataclasses.replace(networks.decoder, lora=None)
      self._reference_logp = jax.jit(
          dataclasses.replace(networks, decoder=plain).logp
      )
    weights = ('policy_weight_BT',)
    actor_loss = networks.actor_loss
    if supervised:
      actor_loss = networks.likelihood_loss
    elif self._shares:
      actor_loss = networks.shared_loss
      weights = ('policy_weight_BT', 'critic_weight_BT')
    self._actor_gradient = self._accumulate(actor_loss, weights)
    self._critic_gradient = self._accumulate(
        networks.critic_loss, ('critic_weight_BT',)
    )
    self._plan = jax.jit(
        functools.partial(passes.plan, settings=self._objective),
        out_shardings=self._rows,
    )
    self._norm = jax.jit(optax.global_norm)
    self._apply_actor = _apply(self.actor_optimizer, actor_optimizer)
    self._apply_critic = _apply(self.critic_optimizer, critic_optimizer)
    self._estimate = jax.jit(
        functools.partial(_estimate, config=self._gae, level=self._critic.level)
    )

  def _accumulate(self, loss: Callable[..., Any], weights: tuple[str, ...]):
    """Gradient, statistics, weight sum and loss, added to those so far."""

    whole_loss = lambda params, base, part: loss(
        lora.join(base, params), part
    )

    @functools.partial(jax.jit, donate_argnums=(3,))
    def add(params, base, part, so_far):
      (value, stats), gradients = jax.value_and_grad(whole_loss, has_aux=True)(
          params, base, part
      )
      gradients = jax.lax.with_sharding_constraint(
          gradients, self.param_shardings(params)
      )
      total, total_stats, total_weight, total_loss = so_far
      weight = sum(jnp.sum(getattr(part, name)) for name in weights)
      return (
          jax.tree.map(jnp.add, total, gradients),
          statistics.merge(total_stats, stats),
          total_weight + weight,
          total_loss + value,
      )

    @jax.jit
    def start(params, base, part):
      # One program for every microbatch: the first is added to zeros.
      _, stats = jax.eval_shape(whole_loss, params, base, part)
      zeros = lambda tree: jax.tree.map(
          lambda x: jnp.zeros(x.shape, x.dtype), tree
      )
      gradients = jax.lax.with_sharding_constraint(
          zeros(params), self.param_shardings(params)
      )
      zero = jnp.zeros((), jnp.float32)
      return gradients, zeros(stats), zero, zero

    return Gradient(start, add)


def _apply(optimizer: Any, config: schema.OptimizerConfig):
  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(params, opt_state, gradients, weight, loss):
    return optimizers.apply_gradients(
        optimizer,
        params,
        opt_state,
        gradients,
        weight,
        loss=loss,
        clip_norm=config.clip_norm,
    )

  return step


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


def _part(tree: Any, like: Any) -> Any:
  """The subtrees of `tree` that are in `like`, too."""
  if not isinstance(like, dict):
    return tree
  return {name: _part(tree[name], value) for name, value in like.items()}
