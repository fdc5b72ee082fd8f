"""Rotary position embedding in the half-and-half layout."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import config as config_lib


def frequencies(config: config_lib.DecoderConfig) -> np.ndarray:
  """Angle per position of each of the K/2 pairs, float64.

  Kind `llama3` keeps short wavelengths, divides long ones by `factor` and
  blends between (K41).
  """
  pair = np.arange(config.head_width // 2, dtype=np.float64)
  plain = config.rope_theta ** (-2.0 * pair / config.head_width)
  scaling = config.rope_scaling
  if config_lib.rope_kind(scaling) == 'default':
    return plain
  low, high = scaling['low_freq_factor'], scaling['high_freq_factor']
  turns = scaling['original_max_position_embeddings'] * plain / (2 * math.pi)
  keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
  return plain * (keep + (1.0 - keep) / scaling['factor'])


def angles(
    position_BT: jax.Array, config: config_lib.DecoderConfig
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine per position and pair, float32 [..., K/2]."""
  rate = jnp.asarray(frequencies(config), jnp.float32)
  angle = position_BT[..., None].astype(jnp.float32) * rate
  return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates pair (i, i + K/2) of every head of x [..., H, K]."""
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  cos, sin = cos[..., None, :], sin[..., None, :]
  rotated = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-1
  )
  return rotated.astype(x.dtype)
