"""A hash of parameters that is worked out where they lie."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.sharding import placement

_DEVICE = 'device'
# Two sums under different words: 64 bits a leaf.
_WORDS = (0x9E3779B9, 0x85EBCA6B)


def fingerprint(params: Any) -> str:
  """Hex digest of all leaves: names, shapes and every bit of them.

  Each leaf is reduced on its devices to two sums modulo 2^32 over scrambled
  (value, place) pairs, so the digest is the same on any mesh and a few bytes
  a leaf leave the device.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  # What waits in the host's memory comes to the devices leaf by leaf.
  waiting = {
      place: _sums([jax.device_put(leaf, on_device)])
      for place, (_, leaf) in enumerate(leaves)
      if (on_device := _elsewhere(leaf)) is not None
  }
  here = [leaf for i, (_, leaf) in enumerate(leaves) if i not in waiting]
  sums = iter(placement.fetch(_sums(here)))
  waiting = placement.fetch(waiting)
  sums = [
      waiting[i][0] if i in waiting else next(sums) for i in range(len(leaves))
  ]
  digest = hashlib.blake2b(digest_size=8)
  for (path, leaf), pair in zip(leaves, sums):
    name = jax.tree_util.keystr(path)
    digest.update(f'{name}{leaf.shape}{leaf.dtype}'.encode())
    digest.update(np.asarray(pair, np.uint32).tobytes())
  return digest.hexdigest()


def _elsewhere(leaf: Any) -> jax.sharding.Sharding | None:
  """Where a leaf has to go to be summed; None where it is there."""
  place = getattr(leaf, 'sharding', None)
  if place is None or place.memory_kind in (None, _DEVICE):
    return None
  return place.with_memory_kind(_DEVICE)


@jax.jit
def _sums(leaves: list[jax.Array]) -> list[jax.Array]:
  return [_leaf_sums(leaf) for leaf in leaves]


def _leaf_sums(leaf: jax.Array) -> jax.Array:
  bits = _bits(leaf)
  place = jnp.zeros(bits.shape, jnp.uint32)
  for axis, size in enumerate(bits.shape):
    step = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    place = place * jnp.uint32(size) + step
  return jnp.stack([
      jnp.sum(_scramble(bits ^ _scramble(place + jnp.uint32(word))))
      for word in _WORDS
  ]).astype(jnp.uint32)


def _bits(leaf: jax.Array) -> jax.Array:
  """The leaf's bits as uint32."""
  size = leaf.dtype.itemsize
  if leaf.dtype == bool:
    return leaf.astype(jnp.uint32)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}.get(size)
  if unsigned is None:
    raise ValueError(f'no fingerprint of {leaf.dtype}: 1 to 4 bytes a number.')
  return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def _scramble(x: jax.Array) -> jax.Array:
  """The finaliser of MurmurHash3: every input bit reaches every output bit."""
  x = x ^ (x >> 16)
  x = x * jnp.uint32(0x85EBCA6B)
  x = x ^ (x >> 13)
  x = x * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
