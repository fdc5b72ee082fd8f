"""The modules of a decoder: norms, projections, one layer.

They say which parameters exist and how they are used.
"""

import math

from flax import nnx
import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from rl_tpu.models import activations
from rl_tpu.models import config as config_lib
from rl_tpu.models import execution as execution_lib
from rl_tpu.models import lora
from rl_tpu.models import matrix
from rl_tpu.models import mixture
from rl_tpu.models import rotary


def _param(rngs: nnx.Rngs, axes: tuple[str, ...], *shape: int, std: float):
  value = std * jax.random.normal(rngs.params(), shape, jnp.float32)
  return nnx.Param(value, axes=axes)


class Norm(nnx.Module):
  """RMSNorm, computed in float32."""

  def __init__(self, size: int, axis: str, config: config_lib.DecoderConfig):
    self.offset = 1.0 if config.norm_offset else 0.0
    ones = jnp.ones(size, jnp.float32)
    self.scale = nnx.Param(ones - self.offset, axes=(axis,))
    self.eps = config.norm_eps

  def __call__(self, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    power = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    scale = self.scale[...]
    if self.offset:
      scale = self.offset + scale
    scaled = wide * jax.lax.rsqrt(power + self.eps) * scale
    return scaled.astype(x.dtype)


class Adapter(nnx.Module):
  """What is added to the product with a matrix: alpha / rank * x A B."""

  def __init__(
      self, settings: lora.Settings, kernel: nnx.Param, inputs: int, rngs
  ):
    """Beside a kernel, whose first axes read; the others are written to."""
    axes, shape = kernel.get_metadata()['axes'], kernel.shape
    self.scale = settings.scale
    self.a = _param(
        rngs,
        (*axes[:inputs], 'rank'),
        *(*shape[:inputs], settings.rank),
        std=1.0 / math.sqrt(math.prod(shape[:inputs])),
    )
    zeros = jnp.zeros((settings.rank, *shape[inputs:]), jnp.float32)
    self.b = nnx.Param(zeros, axes=('rank', *axes[inputs:]))

  def __call__(self, x: jax.Array) -> jax.Array:
    a = self.a[...].reshape(x.shape[-1], -1).astype(x.dtype)
    b = self.b[...].reshape(a.shape[-1], -1).astype(x.dtype)
    return self.scale * matrix.product(matrix.product(x, a), b)


def _adapter(config, name, kernel, rngs, inputs=1):
  """The adapter of a module, if it has one."""
  if config.lora is None or name not in config.lora.targets:
    return nnx.data(None)
  return Adapter(config.lora, kernel, inputs, rngs)


def _product(module, x: jax.Array, flat: jax.Array) -> jax.Array:
  """x times a module's kernel [in, out], and what its adapter adds."""
  out = matrix.product(x, flat)
  return out if module.lora is None else out + module.lora(x)


class Heads(nnx.Module):
  """Projection of the residual stream to heads."""

  def __init__(
      self,
      config: config_lib.DecoderConfig,
      name: str,
      heads: int,
      axis: str,
      rngs: nnx.Rngs,
  ):
    width, size = config.width, config.head_width
    self.kernel = _param(
        rngs,
        ('width', axis, 'head_width'),
        *(width, heads, size),
        std=1.0 / math.sqrt(width),
    )
    self.bias = nnx.data(None)
    if config.qkv_bias:
      zeros = jnp.zeros((heads, size), jnp.float32)
      self.bias = nnx.Param(zeros, axes=(axis, 'head_width'))
    self.lora = _adapter(config, name, self.kernel, rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    width, heads, size = self.kernel.shape
    flat = self.kernel[...].astype(x.dtype).reshape(width, heads * size)
    out = _product(self, x, flat).reshape(*x.shape[:-1], heads, size)
    return out if self.bias is None else out + self.bias[...].astype(x.dtype)


class Dense(nnx.Module):
  """A matrix without bias."""

  def __init__(
      self,
      config: config_lib.DecoderConfig,
      name: str,
      axes: tuple[str, str],
      shape: tuple[int, int],
      rngs: nnx.Rngs,
      scale: float = 1.0,
  ):
    std = scale / math.sqrt(shape[0])
    self.kernel = _param(rngs, axes, *shape, std=std)
    self.lora = _adapter(config, name, self.kernel, rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    return _product(self, x, self.kernel[...].astype(x.dtype))


class Output(nnx.Module):
  """Projection of the heads back to the residual stream."""

  def __init__(
      self, config: config_lib.DecoderConfig, scale: float, rngs: nnx.Rngs
  ):
    heads, size = config.num_heads, config.head_width
    self.kernel = _param(
        rngs,
        ('heads', 'head_width', 'width'),
        *(heads, size, config.width),
        std=scale / math.sqrt(heads * size),
    )
    self.lora = _adapter(config, 'out', self.kernel, rngs, inputs=2)

  def __call__(self, attended: jax.Array) -> jax.Array:
    heads, size, width = self.kernel.shape
    kernel = self.kernel[...].astype(attended.dtype)
    flat = attended.reshape(*attended.shape[:-2], heads * size)
    return _product(self, flat, kernel.reshape(heads * size, width))


class FeedForward(nnx.Module):
  """The gated feed-forward layer."""

  def __init__(
      self,
      config: config_lib.DecoderConfig,
      inner: int,
      scale: float,
      rngs: nnx.Rngs,
  ):
    self.config = config
    _add_feed_forward(self, config, inner, scale, rngs)

  def __call__(self, x: jax.Array, execution) -> jax.Array:
    return _feed_forward(self, x, execution)


def _add_feed_forward(module, config, inner, scale, rngs) -> None:
  wide = ('width', 'mlp'), (config.width, inner)
  narrow = ('mlp', 'width'), (inner, config.width)
  module.gate = Dense(config, 'gate', *wide, rngs)
  module.up = Dense(config, 'up', *wide, rngs)
  module.down = Dense(config, 'down', *narrow, rngs, scale)


def _feed_forward(module, x: jax.Array, execution) -> jax.Array:
  keep = lambda inner: ad_checkpoint.checkpoint_name(
      execution.divide_columns(inner), 'mlp'
  )
  gate, up = keep(module.gate(x)), keep(module.up(x))
  return module.down(activations.gated(gate, up, module.config.activation))


class Router(nnx.Module):
  """Scores of the experts; the bias is for their choice only."""

  def __init__(self, config: config_lib.DecoderConfig, rngs: nnx.Rngs):
    count = config.mixture.num_experts
    self.kernel = _param(
        rngs,
        ('width', 'router'),
        *(config.width, count),
        std=1.0 / math.sqrt(config.width),
    )
    self.bias = nnx.data(None)
    if config.mixture.router == 'sigmoid':
      zeros = jnp.zeros(count, jnp.float32)
      self.bias = nnx.Param(zeros, axes=('router',))


class Expert(nnx.Module):
  """One matrix of every expert."""

  def __init__(
      self,
      axes: tuple[str, str, str],
      shape: tuple[int, int, int],
      rngs: nnx.Rngs,
      scale: float = 1.0,
  ):
    std = scale / math.sqrt(shape[1])
    self.kernel = _param(rngs, axes, *shape, std=std)


class Mixture(nnx.Module):
  """Experts, their router, and what every token takes beside them."""

  def __init__(
      self, config: config_lib.DecoderConfig, scale: float, rngs: nnx.Rngs
  ):
    self.config = config
    settings = config.mixture
    wide = (settings.num_experts, config.width, settings.expert_width)
    narrow = (settings.num_experts, settings.expert_width, config.width)
    self.router = Router(config, rngs)
    self.gate = Expert(mixture.WIDE, wide, rngs)
    self.up = Expert(mixture.WIDE, wide, rngs)
    self.down = Expert(mixture.NARROW, narrow, rngs, scale)
    self.shared = nnx.data(None)
    if settings.shared_width:
      self.shared = FeedForward(config, settings.shared_width, scale, rngs)

  def __call__(self, x: jax.Array, execution) -> tuple[jax.Array, jax.Array]:
    bias = self.router.bias
    experts = mixture.Experts(
        router=self.router.kernel[...],
        bias=None if bias is None else bias[...],
        gate=self.gate.kernel[...],
        up=self.up.kernel[...],
        down=self.down.kernel[...],
    )
    out, expert_NM = mixture.apply(experts, self.config, x, execution.mesh)
    if self.shared is not None:
      out = out + self.shared(x, execution)
    return out, expert_NM


class Block(nnx.Module):
  """One layer, in the two steps around its attention."""

  def __init__(
      self,
      config: config_lib.DecoderConfig,
      rngs: nnx.Rngs,
      *,
      is_sparse: bool = False,
  ):
    width, size = config.width, config.head_width
    self.config = config
    self.attention_norm = Norm(width, 'width', config)
    self.query = Heads(config, 'query', config.num_heads, 'heads', rngs)
    kv = (config.num_kv_heads, 'kv_heads', rngs)
    self.key, self.value = (Heads(config, n, *kv) for n in ('key', 'value'))
    self.query_norm = self.key_norm = nnx.data(None)
    if config.qk_norm:
      self.query_norm = Norm(size, 'head_width', config)
      self.key_norm = Norm(size, 'head_width', config)
    # The residual stream adds 2L outputs: their variance should not grow.
    scale = 1.0 / math.sqrt(2.0 * config.num_layers)
    self.out = Output(config, scale, rngs)
    self.mlp_norm = Norm(width, 'width', config)
    self.attention_post_norm = self.mlp_post_norm = nnx.data(None)
    if config.post_norms:
      self.attention_post_norm = Norm(width, 'width', config)
      self.mlp_post_norm = Norm(width, 'width', config)
    self.mixture = nnx.data(None)
    if is_sparse:
      self.mixture = Mixture(config, scale, rngs)
    else:
      _add_feed_forward(self, config, config.mlp_width, scale, rngs)

  def project(
      self,
      x: jax.Array,
      cos: jax.Array,
      sin: jax.Array,
      execution: execution_lib.Execution,
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rotated queries and keys, and values, [T, H, K] of x [T, D]."""
    x = execution.whole_rows(self.attention_norm(x))
    query, key, value = (
        execution.divide_columns(heads(x))
        for heads in (self.query, self.key, self.value)
    )
    if self.query_norm is not None:
      query, key = self.query_norm(query), self.key_norm(key)
    turn = lambda heads: rotary.rotate(
        heads,
        cos[..., None, :],
        sin[..., None, :],
        interleaved=self.config.rotary_interleaved,
    )
    save = lambda heads: ad_checkpoint.checkpoint_name(heads, 'heads')
    return save(turn(query)), save(turn(key)), save(value)

  def merge(
      self,
      x: jax.Array,
      attended: jax.Array,
      execution: execution_lib.Execution,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Adds the attention output [T, H, K] and the feed-forward layer.

    Returns:
      [T, D], and in a layer that has experts those that each token took.
    """
    added = execution.spread_tokens(self.out(attended))
    if self.attention_post_norm is not None:
      added = self.attention_post_norm(added)
    x = ad_checkpoint.checkpoint_name(x + added, 'middle')
    inner = execution.whole_rows(self.mlp_norm(x))
    expert_NM = None
    if self.mixture is None:
      added = _feed_forward(self, inner, execution)
    else:
      added, expert_NM = self.mixture(inner, execution)
    added = execution.spread_tokens(added)
    if self.mlp_post_norm is not None:
      added = self.mlp_post_norm(added)
    return x + added, expert_NM
