"""Rotary position embedding."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import config as config_lib


def frequencies(
    config: config_lib.DecoderConfig, *, local: bool = False
) -> np.ndarray:
  """Angle per position of each pair, float64.

  Kind `linear` divides all of them by `factor`; kind `llama3` keeps short
  wavelengths, divides long ones by `factor` and blends between (K41).

  Args:
    config: the decoder's settings.
    local: those of the local layers.
  """
  width = config.rotary_width or config.head_width
  theta, scaling = config.rope_theta, config.rope_scaling
  if local and config.local_rope_theta is not None:
    theta, scaling = config.local_rope_theta, None
  pair = np.arange(width // 2, dtype=np.float64)
  plain = theta ** (-2.0 * pair / width)
  kind = config_lib.rope_kind(scaling)
  if kind == 'default':
    return plain
  if kind == 'linear':
    return plain / scaling['factor']
  low, high = scaling['low_freq_factor'], scaling['high_freq_factor']
  turns = scaling['original_max_position_embeddings'] * plain / (2 * math.pi)
  keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
  return plain * (keep + (1.0 - keep) / scaling['factor'])


def angles(
    position_BT: jax.Array,
    config: config_lib.DecoderConfig,
    *,
    local: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine per position and pair, float32 [..., pairs]."""
  rate = jnp.asarray(frequencies(config, local=local), jnp.float32)
  angle = position_BT[..., None].astype(jnp.float32) * rate
  return jnp.cos(angle), jnp.sin(angle)


def rotate(
    x: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    axis: int = -1,
    interleaved: bool = False,
) -> jax.Array:
  """Rotates the first dimensions of every head; what is behind them stays.

  Args:
    x: heads.
    cos: cosines of P pairs on `axis`; the other axes broadcast to x.
    sin: sines alike.
    axis: of the head's dimensions in all three, negative.
    interleaved: pairs are (2i, 2i + 1) of the first 2P, not (i, i + P).
  """
  pairs = cos.shape[axis]
  turned = jax.lax.slice_in_dim(x, 0, 2 * pairs, axis=axis)
  turned = turned.astype(jnp.float32)
  if interleaved:
    shape = turned.shape
    split = (*shape[:axis], pairs, 2, *shape[x.ndim + axis + 1 :])
    first, second = jnp.moveaxis(turned.reshape(split), x.ndim + axis + 1, 0)
  else:
    first, second = jnp.split(turned, 2, axis=axis)
  new = (first * cos - second * sin, second * cos + first * sin)
  if interleaved:
    turned = jnp.stack(new, axis=x.ndim + axis + 1).reshape(shape)
  else:
    turned = jnp.concatenate(new, axis=axis)
  turned = turned.astype(x.dtype)
  if 2 * pairs == x.shape[axis]:
    return turned
  rest = jax.lax.slice_in_dim(x, 2 * pairs, None, axis=axis)
  return jnp.concatenate([turned, rest], axis=axis)
