"""Mixture of experts: the router's choice and the chosen experts' work.

Tokens are sorted by expert and every expert multiplies its own rows (a ragged
product), so that none is dropped for want of capacity and none is computed
for an expert that it did not take.

On a mesh a device has its experts and its part of their inner width, and
there they stay: the tokens of all shards of the axis `expert` come to it, and
the sums of what its experts make of them go back. An exchange of chosen rows
alone would move no less, since a token takes about as many experts as the
axis has shards, and has no bound that a compiled shape could have.
"""

from typing import NamedTuple

import jax
from jax import ad_checkpoint
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rl_tpu.models import activations
from rl_tpu.models import config as config_lib
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules

# Names of the matrices' dimensions, gate and up alike.
WIDE = ('expert', 'width', 'mlp')
NARROW = ('expert', 'mlp', 'width')


class Experts(NamedTuple):
  """Weights of one mixture layer.

  Attributes:
    router: [D, E] float32.
    bias: [E] float32, added to the scores for the choice; None for none.
    gate: [E, D, F].
    up: [E, D, F].
    down: [E, F, D].
  """

  router: jax.Array
  bias: jax.Array | None
  gate: jax.Array
  up: jax.Array
  down: jax.Array


class Choice(NamedTuple):
  """Experts of each token.

  Attributes:
    weight_NM: float32, what their outputs are weighted with.
    expert_NM: int32, their numbers.
  """

  weight_NM: jax.Array
  expert_NM: jax.Array


def route(
    logit_NE: jax.Array,
    bias_E: jax.Array | None,
    config: config_lib.MixtureConfig,
) -> Choice:
  """Experts of each token, and what their outputs are weighted with.

  Args:
    logit_NE: the router's float32 logits.
    bias_E: added to the scores for the choice only; no gradient flows to it.
    config: the mixture's settings.

  Returns:
    The choice, M = experts_per_token.
  """
  if config.router == 'softmax':
    score_NE = jax.nn.softmax(logit_NE, axis=-1)
  else:
    score_NE = jax.nn.sigmoid(logit_NE)
  choice_NE = jax.lax.stop_gradient(score_NE)
  if bias_E is not None:
    choice_NE = choice_NE + jax.lax.stop_gradient(bias_E)
  if config.groups_per_token < config.num_groups:
    choice_NE = _keep_groups(choice_NE, config)
  _, expert_NM = jax.lax.top_k(choice_NE, config.experts_per_token)
  weight_NM = jnp.take_along_axis(score_NE, expert_NM, axis=-1)
  if config.normalise:
    total = jnp.sum(weight_NM, axis=-1, keepdims=True)
    weight_NM = weight_NM / (total + 1e-20)
  return Choice(config.scale * weight_NM, expert_NM)


def _keep_groups(choice_NE, config) -> jax.Array:
  """Masks the groups whose best two experts add up to less than others'."""
  N, E = choice_NE.shape
  grouped = choice_NE.reshape(N, config.num_groups, E // config.num_groups)
  best = jnp.sum(jax.lax.top_k(grouped, 2)[0], axis=-1)
  _, kept = jax.lax.top_k(best, config.groups_per_token)
  is_kept = jnp.any(
      kept[..., None] == jnp.arange(config.num_groups), axis=1
  )
  return jnp.where(is_kept[..., None], grouped, -jnp.inf).reshape(N, E)


def apply(
    experts: Experts,
    config: config_lib.DecoderConfig,
    x_ND: jax.Array,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The weighted sum of each token's experts.

  Args:
    experts: the layer's weights; on a mesh they lie as `sharding.rules` says.
    config: the decoder's settings.
    x_ND: the tokens; on a mesh rows over its batch axes, which divide N.
    mesh: whose devices each do the work of their experts; None leaves the
      placement to the compiler.

  Returns:
    The sums, [N, D] in the dtype of the tokens, and the chosen experts, [N, M].
  """
  if mesh is None or mesh.size == 1:
    choice = _choose(experts, config, x_ND)
    out_ND = _work(_matrices(experts, x_ND), config, x_ND, choice)
    return out_ND, choice.expert_NM
  expert, fsdp, inner = _axes(config, mesh)

  def local(experts, x_ND):
    choice = _choose(experts, config, x_ND)
    gate, up, down = _matrices(experts, x_ND)
    if fsdp is not None:
      # Stored in parts, used whole; the gradient is scattered back likewise.
      gather = lambda kernel, axis: jax.lax.all_gather(
          kernel, fsdp, axis=axis, tiled=True
      )
      gate, up, down = gather(gate, 1), gather(up, 1), gather(down, 2)
    if inner is not None:
      # Here, or the gradient was summed over the axis row by row: for every
      # expert of a token, and for the tokens of all shards of `expert`.
      x_ND = jax.lax.pcast(x_ND, inner, to='varying')
    out_ND = _work(
        (gate, up, down), config, x_ND, choice, expert=expert, inner=inner
    )
    return out_ND, choice.expert_NM

  whole, rows = PartitionSpec(), PartitionSpec(mesh_lib.BATCH_AXES)
  wide = PartitionSpec(expert, fsdp, inner)
  narrow = PartitionSpec(expert, inner, fsdp)
  return jax.shard_map(
      local,
      mesh=mesh,
      in_specs=(Experts(whole, whole, wide, wide, narrow), rows),
      out_specs=rows,
  )(experts, x_ND)


def apply_on_shard(
    experts: Experts,
    config: config_lib.DecoderConfig,
    x_ND: jax.Array,
    mesh: jax.sharding.Mesh,
) -> jax.Array:
  """The sums of `apply`, inside of a `shard_map` over the batch axes.

  Args:
    experts: the shard's, whole but for what is divided over `tensor`.
    config: the decoder's settings.
    x_ND: tokens of the shard; all shards of the axis `expert` are here, each
      with as many.
    mesh: that of the `shard_map`.

  Returns:
    [N, D] in the dtype of the tokens.
  """
  expert, _, inner = _axes(config, mesh)
  wide = PartitionSpec(None, None, inner)
  narrow = PartitionSpec(None, inner, None)
  whole = PartitionSpec()
  return jax.shard_map(
      lambda matrices, x_ND, choice: _work(
          matrices, config, x_ND, choice, expert=expert, inner=inner
      ),
      axis_names=frozenset({'tensor'}),
      in_specs=((wide, wide, narrow), whole, whole),
      out_specs=whole,
      check_vma=False,
  )(_matrices(experts, x_ND), x_ND, _choose(experts, config, x_ND))


def load(
    expert_NM: jax.Array, is_real_N: jax.Array, num_experts: int
) -> jax.Array:
  """How many real tokens took each expert, int32 [E]."""
  is_taken_NME = expert_NM[..., None] == jnp.arange(num_experts)
  is_counted_NME = is_taken_NME & is_real_N[:, None, None]
  return jnp.sum(is_counted_NME, axis=(0, 1), dtype=jnp.int32)


def _choose(experts: Experts, config, x_ND: jax.Array) -> Choice:
  logit_NE = x_ND.astype(jnp.float32) @ experts.router
  return route(logit_NE, experts.bias, config.mixture)


def _matrices(experts: Experts, x_ND: jax.Array) -> tuple[jax.Array, ...]:
  kernels = experts.gate, experts.up, experts.down
  return tuple(kernel.astype(x_ND.dtype) for kernel in kernels)


def _axes(config, mesh) -> tuple[str | None, str | None, str | None]:
  """Mesh axes that E, D and F are divided over."""
  mixture = config.mixture
  shape = (mixture.num_experts, config.width, mixture.expert_width)
  spec = rules.spec(WIDE, shape, mesh)
  return tuple(a if a and mesh.shape[a] > 1 else None for a in spec)


def _work(
    matrices, config, x_ND, choice: Choice, *, expert=None, inner=None
) -> jax.Array:
  """One device's work, and what it exchanges over the axes of E and F."""
  shards = 1 if expert is None else jax.lax.axis_size(expert)
  rounds = _rounds(matrices, x_ND.shape[0], shards, config)

  def one(part):
    x_ND, choice = part
    if expert is not None:
      x_ND, choice = jax.lax.all_gather(part, expert, axis=0, tiled=True)
      first = jax.lax.axis_index(expert) * matrices[0].shape[0]
      choice = choice._replace(expert_NM=choice.expert_NM - first)
    out_ND = _experts_here(matrices, config, x_ND, choice, rounds == 1)
    if expert is not None:
      out_ND = jax.lax.psum_scatter(out_ND, expert, tiled=True)
    return out_ND if inner is None else jax.lax.psum(out_ND, inner)

  if rounds == 1:
    return one((x_ND, choice))
  parts = jax.tree.map(
      lambda x: x.reshape(rounds, -1, x.shape[-1]), (x_ND, choice)
  )
  # Checkpointed, or the backward pass had the rows of all rounds at once.
  return jax.lax.map(jax.checkpoint(one), parts).reshape(x_ND.shape)


def _rounds(matrices, tokens: int, shards: int, config) -> int:
  """In how many rounds tokens are worked through.

  All tokens may choose the experts of one device, and a shape has room for
  that. A round has no more rows than the device's own tokens take experts, or
  than are as large as its matrices, whichever is more: the first bounds the
  memory, and by the second few tokens, as in decoding, read the matrices once.
  """
  own = tokens * config.mixture.experts_per_token
  most = max(own, sum(x.size for x in matrices) // config.width)
  divides = lambda rounds: tokens % rounds == 0
  fits = lambda rounds: own * shards <= most * rounds
  every = range(1, tokens + 1)
  return next((n for n in every if divides(n) and fits(n)), tokens)


def _experts_here(
    matrices, config, x_ND, choice: Choice, is_saved: bool
) -> jax.Array:
  """The weighted sum over those chosen experts that `matrices` are of.

  The choice counts them from 0; numbers below 0 and from E on are elsewhere.
  """
  gate, up, down = matrices
  weight_NM, expert_NM = choice
  E, M = gate.shape[0], expert_NM.shape[1]
  is_here_NM = (expert_NM >= 0) & (expert_NM < E)
  flat = jnp.where(is_here_NM, expert_NM, E).reshape(-1)
  order = jnp.argsort(flat)  # Rows of expert 0, then of expert 1, ...
  size_E = jnp.bincount(flat, length=E + 1)[:E]
  # What a ragged product leaves in the rows behind the last is not defined.
  is_row = (jnp.arange(flat.size) < jnp.sum(size_E))[:, None]
  keep = lambda rows: jnp.where(is_row, rows, 0)
  product = lambda x, kernel: jax.lax.ragged_dot(x, kernel, size_E)

  def save(rows):
    return ad_checkpoint.checkpoint_name(rows, 'mlp') if is_saved else rows

  rows = keep(x_ND[order // M])
  active = activations.gated(
      save(product(rows, gate)), save(product(rows, up)), config.activation
  )
  out = keep(product(active, down))[jnp.argsort(order)]
  out_NMD = out.reshape(-1, M, out.shape[-1])
  return jnp.einsum('nmd,nm->nd', out_NMD, weight_NM.astype(x_ND.dtype))
