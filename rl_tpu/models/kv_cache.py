"""Keys and values of what a decoder has read.

A layer that sees a window keeps no more than that: a ring, in which position p
lies at index p modulo the ring's length. Which position an index holds follows
from the last one written, so nothing is kept beside the keys and values.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_tpu.models import config as config_lib


class Cache(NamedTuple):
  """Keys and values of every layer; each array is [S, H, T, K].

  The slot is axis 0 of every leaf. H counts key heads.
  """

  key: tuple[jax.Array, ...]
  value: tuple[jax.Array, ...]


def rings(config: config_lib.DecoderConfig) -> Cache:
  """True in place of the arrays that are rings."""
  local = config.local_layers
  is_ring = tuple(index in local for index in range(config.num_layers))
  return Cache(is_ring, is_ring)


def init(
    config: config_lib.DecoderConfig,
    slots: int,
    length: int,
    dtype: str = 'float32',
) -> Cache:
  """An empty cache for `slots` sequences of at most `length` tokens.

  As long as nothing is longer than the window, an index is a position: such
  rings may be lengthened and cut like the other arrays.
  """

  def empty(is_ring: bool) -> jax.Array:
    kept = min(length, config.window) if is_ring else length
    shape = (slots, config.num_kv_heads, kept, config.head_width)
    return jnp.zeros(shape, dtype)

  return jax.tree.map(empty, rings(config))


def of_prompts(
    new_SHTK: jax.Array, length_S: jax.Array, window: int | None
) -> jax.Array:
  """One array of the cache of prompts that were read whole.

  Args:
    new_SHTK: keys or values, padded on the right.
    length_S: tokens of each prompt.
    window: positions that the layer sees, None for all.

  Returns:
    All positions, or a ring of the window's length where they are more.
  """
  S, H, T, K = new_SHTK.shape
  if window is None or T <= window:
    return new_SHTK
  ring = jnp.zeros((S, H, window, K), new_SHTK.dtype)
  return _fold(ring, new_SHTK, jnp.zeros_like(length_S), length_S)


def add(
    old: jax.Array,
    new_SHTK: jax.Array,
    start_S: jax.Array,
    length_S: jax.Array,
    is_ring: bool,
) -> tuple[jax.Array, jax.Array]:
  """Adds T positions a slot to one array of the cache.

  Args:
    old: keys or values of the positions before.
    new_SHTK: those that follow.
    start_S: position of the first.
    length_S: how many of the T are no padding.
    is_ring: from `rings`.

  Returns:
    What the new positions look at, masked by `visible`, and the new array.
    Padding is overwritten before it is read, or not written.
  """
  if not is_ring:
    written = _write(old, new_SHTK, start_S)
    return written, written
  if new_SHTK.shape[2] == 1:
    written = _write(old, new_SHTK, start_S % old.shape[2])
    return written, written
  # In the ring, the last of them would lie where the first still look.
  seen = jnp.concatenate([old, new_SHTK], axis=2)
  return seen, _fold(old, new_SHTK, start_S, length_S)


def visible(
    config: config_lib.DecoderConfig,
    cache: Cache,
    start_S: jax.Array,
    count: int,
) -> list[jax.Array]:
  """What `count` positions from `start_S` on see of what `add` returns.

  Returns:
    bool [S, count, C] of each layer.
  """
  now_ST = start_S[:, None] + jnp.arange(count)

  def mask(is_ring: bool, size: int) -> jax.Array:
    if not is_ring:
      return jnp.arange(size) <= now_ST[..., None]
    if count == 1:
      held = _held(start_S, size)
    else:
      held = jnp.concatenate([_held(start_S - 1, size), now_ST], axis=1)
    age = now_ST[..., None] - held[:, None]
    return (held[:, None] >= 0) & (age >= 0) & (age < config.window)

  kinds = rings(config).key
  sizes = {kind: leaf.shape[2] for kind, leaf in zip(kinds, cache.key)}
  masks = {kind: mask(kind, size) for kind, size in sizes.items()}
  return [masks[kind] for kind in kinds]


def _held(last_S: jax.Array, size: int) -> jax.Array:
  """Position at each index of a ring, [S, size]; below 0 there is none."""
  behind = (last_S[:, None] - jnp.arange(size)) % size
  return last_S[:, None] - behind


def _write(
    old: jax.Array, new_SHTK: jax.Array, start_S: jax.Array
) -> jax.Array:
  """Writes T positions a slot, which must have room there.

  A scatter over slots and positions would gather the slots on every device.
  """
  put = lambda row, new, start: jax.lax.dynamic_update_slice(
      row, new, (0, start, 0)
  )
  return jax.vmap(put)(old, new_SHTK, start_S)


def _fold(
    ring: jax.Array,
    new_SHTK: jax.Array,
    start_S: jax.Array,
    length_S: jax.Array,
) -> jax.Array:
  """Writes the last tokens of each slot into its ring, and no padding."""
  size = ring.shape[2]
  count = min(size, new_SHTK.shape[2])

  def put(row, new, start, length):
    first = jnp.maximum(length - count, 0)
    last = jax.lax.dynamic_slice_in_dim(new, first, count, axis=1)
    last = jnp.pad(last, ((0, 0), (0, size - count), (0, 0)))
    # A turn of the whole, not a gather by position: it is two copies.
    turned = jnp.roll(last, (start + first) % size, axis=1)
    source = (jnp.arange(size) - start - first) % size
    return jnp.where((source < length - first)[:, None], turned, row)

  return jax.vmap(put)(ring, new_SHTK, start_S, length_S)
