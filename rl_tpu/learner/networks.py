"""Losses and scores as functions of parameters and rows, to be jitted.

Two networks by default; with `critic.sharing = shared_backbone` one network
that has the policy's output layer and a value head (C10).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.learner import freezing
from rl_tpu.losses import objective
from rl_tpu.losses import statistics
from rl_tpu.models import actor as actor_lib
from rl_tpu.models import config as model_config
from rl_tpu.models import critic as critic_lib
from rl_tpu.models import decoder
from rl_tpu.models import execution as execution_lib
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import sums

Params = dict[str, Any]
HEAD = 'value_head'
# Marks the critic's statistics among those of a shared network.
CRITIC = 'critic/'


def policy_params(params: Params) -> Params:
  """The policy's part of a network: what is sampled from."""
  return {name: leaf for name, leaf in params.items() if name != HEAD}


def critic_view(params: Params) -> Params:
  """A shared network in the form of a critic's parameters."""
  return {'backbone': policy_params(params), HEAD: params[HEAD]}


@dataclasses.dataclass(frozen=True)
class Networks:
  """Forward passes and losses under one set of settings.

  Attributes:
    decoder: the decoder that all networks share the shape of.
    model: dtype, rematerialisation and logit chunk.
    temperature: the sampler's, under which all log-probabilities are.
    objective: the actor's objective.
    critic: head, frozen parameters and value clip.
    mesh: where they run.
  """

  decoder: model_config.DecoderConfig
  model: schema.ModelConfig
  temperature: float
  objective: objective.Settings
  critic: schema.CriticConfig
  mesh: jax.sharding.Mesh | None = None

  @property
  def execution(self) -> execution_lib.Execution:
    """How every forward pass runs."""
    return execution_lib.Execution(
        dtype=self.model.dtype,
        remat=self.model.remat,
        attention=self.model.attention,
        mesh=self.mesh,
    )

  @property
  def bins(self) -> int | None:
    """Bins of the value head; None where it is one number."""
    return self.critic.bins if self.critic.head == 'hl_gauss' else None

  @property
  def value_range(self) -> critic_lib.ValueRange:
    """Range of the bins; None where the head is one number."""
    if self.critic.head != 'hl_gauss':
      return None
    return self.critic.vmin, self.critic.vmax

  def logical_axes(self, params: Params) -> Any:
    """Names of the dimensions of actor, critic or shared parameters."""
    if 'backbone' in params:
      return critic_lib.logical_axes(self.decoder, bins=self.bins)
    axes = decoder.logical_axes(self.decoder)
    if HEAD in params:
      axes = {**axes, HEAD: critic_lib.head_axes(bins=self.bins)}
    return axes

  def with_head(self, params: Params) -> Params:
    """The actor's parameters with a value head beside the output layer."""
    return {**params, HEAD: critic_lib.init_head(params, **self._head())}

  def critic_params(self, params: Params) -> Params:
    """A critic of its own that starts from the actor's backbone."""
    return critic_lib.init_params(params, **self._head())

  def _head(self) -> dict[str, Any]:
    return {
        'head_bias': self.critic.head_bias,
        'bins': self.bins,
        'value_range': self.value_range,
    }

  # --- scores --------------------------------------------------------------

  def logp(self, params: Params, rows: batch_lib.Rows) -> jax.Array:
    """log pi(x_p) of every position."""
    return actor_lib.logp_and_entropy(
        params,
        self.decoder,
        rows,
        execution=self.execution,
        temperature=self.temperature,
        logits_chunk=self.model.logits_chunk,
    )[0]

  def values(self, params: Params, rows: batch_lib.Rows) -> jax.Array:
    """head_BT: at q the value of the state after x_q."""
    return critic_lib.value_head(
        params,
        self.decoder,
        rows,
        value_range=self.value_range,
        execution=self.execution,
    )

  # --- losses --------------------------------------------------------------

  def likelihood_loss(self, params: Params, part: batch_lib.Minibatch):
    """Negative log-likelihood of the action tokens, under the weights."""
    _, logp_BT, entropy_BT, stats = self._policy(params, part)
    mask_BT = part.policy_weight_BT > 0
    clean_BT = jnp.where(mask_BT, logp_BT, 0.0)
    loss = -jnp.sum(clean_BT * part.policy_weight_BT)
    stats['nll'] = sums.masked_sum(-logp_BT, mask_BT)
    stats['entropy'] = sums.masked_sum(entropy_BT, mask_BT)
    return loss, jax.lax.stop_gradient(stats)

  def actor_loss(self, params: Params, part: batch_lib.Minibatch):
    """The actor's objective on a microbatch."""
    _, logp_BT, entropy_BT, stats = self._policy(params, part)
    loss, more = objective.actor_terms(
        logp_BT, entropy_BT, part, settings=self.objective
    )
    return loss, {**more, **stats}

  def critic_loss(self, params: Params, part: batch_lib.Minibatch):
    """The critic's loss on a microbatch."""
    params = freezing.stopped(params, self.critic.freeze)
    hidden_BTD = self._read(decoder.hidden, params['backbone'], part.rows)
    return self._value_loss(params[HEAD], hidden_BTD, part)

  def shared_loss(self, params: Params, part: batch_lib.Minibatch):
    """Policy terms + loss.value_coef * value loss on one backbone (L4)."""
    hidden_BTD, logp_BT, entropy_BT, stats = self._policy(params, part)
    policy, more = objective.actor_terms(
        logp_BT, entropy_BT, part, settings=self.objective
    )
    value, of_critic = self._value_loss(params[HEAD], hidden_BTD, part)
    loss = policy + self.objective.loss.value_coef * value
    of_critic = {CRITIC + name: stat for name, stat in of_critic.items()}
    return loss, {**more, **stats, **of_critic}

  def _read(self, function, backbone: Params, rows: batch_lib.Rows) -> Any:
    return function(
        backbone,
        self.decoder,
        rows.token_BT,
        rows.position_BT,
        rows.segment_BT,
        execution=self.execution,
    )

  def _policy(self, params, part):
    hidden_BTD, load_LE = self._read(
        decoder.hidden_and_load, params, part.rows
    )
    logp_BT, entropy_BT = actor_lib.from_hidden(
        params,
        self.decoder,
        hidden_BTD,
        part.rows,
        temperature=self.temperature,
        logits_chunk=self.model.logits_chunk,
    )
    stats = _overflow(part.rows, activations=hidden_BTD, logits=logp_BT)
    if load_LE is not None:
      stats['expert_load_table'] = load_LE.astype(jnp.float32)
    return hidden_BTD, logp_BT, entropy_BT, stats

  def _value_loss(self, head, hidden_BTD, part):
    out = critic_lib.from_hidden(head, hidden_BTD)
    value_BT = out if self.bins is None else critic_lib.expected(
        out, self.value_range
    )
    align = lambda x: critic_lib.align(x, part.rows.position_BT)
    loss, stats = objective.critic_terms(
        align(value_BT),
        part,
        critic=self.critic,
        logits_BTM=None if self.bins is None else align(out),
    )
    overflow = _overflow(part.rows, activations=hidden_BTD, logits=value_BT)
    return loss, {**stats, **overflow}


def _overflow(rows: batch_lib.Rows, **arrays: jax.Array) -> statistics.Stats:
  """Real positions with a number that is not finite, by array (L21)."""
  real_BT = rows.segment_BT >= 0
  stats = {}
  for name, array in arrays.items():
    bad_BT = ~jnp.isfinite(jax.lax.stop_gradient(array))
    if bad_BT.ndim == 3:
      bad_BT = jnp.any(bad_BT, axis=-1)
    stats[f'nonfinite_{name}'] = sums.masked_sum(bad_BT, real_BT)
  return stats
