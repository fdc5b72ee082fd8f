"""A hash of parameters that is worked out where they lie."""

from collections.abc import Mapping
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
  return fingerprints({'': params})['']


def fingerprints(trees: Mapping[str, Any]) -> dict[str, str]:
  """The digest of each tree by its name, made in one program."""
  leaves = {name: _named_leaves(tree) for name, tree in trees.items()}
  here, waiting = {}, {}
  for tree, named in leaves.items():
    for name, leaf in named:
      (here if _is_on_device(leaf) else waiting)[f'{tree}:{name}'] = leaf
  sums = _sums(here)
  for key, leaf in waiting.items():
    # What waits in the host's memory comes to the devices leaf by leaf.
    place = leaf.sharding.with_memory_kind(_DEVICE)
    sums |= _sums({key: jax.device_put(leaf, place)})
  sums = placement.fetch(sums)
  found = {}
  for tree, named in leaves.items():
    digest = hashlib.blake2b(digest_size=8)
    for name, leaf in named:
      digest.update(_described(name, leaf))
      key = f'{tree}:{name}'
      digest.update(np.asarray(sums[key], np.uint32).tobytes())
    found[tree] = digest.hexdigest()
  return found


def layout(tree: Any) -> str:
  """Hex digest of the names, shapes and dtypes of a tree's leaves."""
  digest = hashlib.blake2b(digest_size=8)
  for name, leaf in _named_leaves(tree):
    digest.update(_described(name, leaf))
  return digest.hexdigest()


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _described(name: str, leaf: Any) -> bytes:
  return f'{name}{leaf.shape}{leaf.dtype}'.encode()


def _is_on_device(leaf: Any) -> bool:
  place = getattr(leaf, 'sharding', None)
  return place is None or place.memory_kind in (None, _DEVICE)


@jax.jit
def _sums(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return {name: _leaf_sums(leaf) for name, leaf in leaves.items()}


def _leaf_sums(leaf: jax.Array) -> jax.Array:
  bits = _bits(leaf)
  place = jnp.zeros(bits.shape, jnp.uint32)
  for axis, size in enumerate(bits.shape):
    step = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    place = place * jnp.uint32(size) + step
  scrambled = tuple(
      _scramble(bits ^ _scramble(place + jnp.uint32(word))) for word in _WORDS
  )
  # One reduction of both: before two, XLA's CPU backend writes each operand
  # out, which is twice the memory of everything that is saved.
  sums = jax.lax.reduce(
      scrambled,
      (jnp.uint32(0),) * len(_WORDS),
      lambda a, b: tuple(x + y for x, y in zip(a, b)),
      tuple(range(bits.ndim)),
  )
  return jnp.stack(sums)


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
