"""Arrays from the host onto a mesh and back, whoever owns its devices.

On a mesh of several processes each of them holds the whole array and keeps
the shards of its own devices; what comes back is whole on all of them.
"""

import functools
from typing import Any, TypeVar

import jax
import numpy as np

from rl_tpu.sharding import rules

T = TypeVar('T')


def put(tree: Any, sharding: jax.sharding.Sharding) -> Any:
  """Places arrays that every process holds alike.

  `jax.device_put` would compare the arrays of all processes at every call.

  Args:
    tree: numpy arrays, or jax arrays of this process or of the whole mesh.
    sharding: of every leaf.
  """
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)

  def place(leaf):
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
      return jax.device_put(leaf, sharding)
    array = np.asarray(leaf)
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: array[index]
    )

  return jax.tree.map(place, tree)


def fetch(tree: Any) -> Any:
  """Fetches a tree in one go, as numpy; called by every process."""
  leaves, structure = jax.tree.flatten(tree)
  apart = [i for i, leaf in enumerate(leaves) if not _is_here(leaf)]
  if apart:
    whole = _replicate(leaves[apart[0]].sharding.mesh)(
        [leaves[i] for i in apart]
    )
    for i, leaf in zip(apart, whole):
      leaves[i] = leaf
  return jax.tree.unflatten(
      structure, [np.asarray(x) for x in jax.device_get(leaves)]
  )


def in_order(tree: T) -> T:
  """What a program returns, to be called before the next one is started.

  CPU devices of two processes may begin programs that are under way together in
  different orders, and their collectives then wait for each other for ever; so
  there one program ends before the next begins. TPUs keep the program's order.
  """
  if jax.process_count() > 1 and jax.default_backend() == 'cpu':
    jax.block_until_ready(tree)
  return tree


def _is_here(leaf: Any) -> bool:
  return (
      not isinstance(leaf, jax.Array)
      or leaf.is_fully_addressable
      or leaf.is_fully_replicated
  )


@functools.cache
def _replicate(mesh: jax.sharding.Mesh):
  return jax.jit(lambda leaves: leaves, out_shardings=rules.replicated(mesh))
