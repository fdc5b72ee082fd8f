"""Sharded arrays, filled block by block from what is not in memory.

The host holds one block at a time and a device its own shard, so that an
array may be larger than the memory that is free beside it.
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

Region = tuple[slice, ...]
Read = Callable[[Region], np.ndarray]


def fill(
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding | None,
    read: Read,
    *,
    split: Sequence[int],
    block_bytes: int,
) -> jax.Array:
  """A float32 array that is read once for every different shard.

  Args:
    shape: of the whole array.
    sharding: where it goes; None is the default device.
    read: the float32 numbers of a region; its slices have whole bounds.
    split: axes that blocks are cut along, the first of them first.
    block_bytes: size of a block at most, where cutting allows it.

  Returns:
    The array; a process fills the shards of its own devices.
  """
  cut = functools.partial(
      _shard, read=read, split=split, block_bytes=block_bytes
  )
  if sharding is None:
    return cut(_bounded((slice(None),) * len(shape), shape), None)
  shards, made = [], {}
  places = sharding.addressable_devices_indices_map(shape)
  for device, index in places.items():
    region = _bounded(index, shape)
    key = tuple((cut.start, cut.stop) for cut in region)
    if key in made:
      shards.append(jax.device_put(made[key], device))
    else:
      made[key] = cut(region, device)
      shards.append(made[key])
  return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def blocks(
    region: Region, split: Sequence[int], block_bytes: int
) -> list[Region]:
  """Cuts a region into blocks of float32 numbers, in order."""
  sizes = [cut.stop - cut.start for cut in region]
  steps = list(sizes)
  for axis in split:
    if 4 * math.prod(steps) <= block_bytes:
      break
    rest = 4 * math.prod(steps) // steps[axis]
    steps[axis] = max(1, block_bytes // rest)
  ranges = [
      [
          slice(start, min(start + step, cut.stop))
          for start in range(cut.start, cut.stop, step)
      ]
      for cut, step in zip(region, steps)
  ]
  return list(itertools.product(*ranges))


def _shard(region, device, *, read, split, block_bytes) -> jax.Array:
  """One device's shard."""
  parts = blocks(region, split, block_bytes)
  if len(parts) == 1:
    return jax.device_put(read(region), device)
  sizes = tuple(cut.stop - cut.start for cut in region)
  shard = jnp.zeros(sizes, jnp.float32, device=device)
  for part in parts:
    start = tuple(
        np.int32(inner.start - outer.start)
        for inner, outer in zip(part, region)
    )
    shard = _write(shard, read(part), start)
    # The block is free once it is written: never two of them on their way.
    shard.block_until_ready()
  return shard


@functools.partial(jax.jit, donate_argnums=0)
def _write(shard: jax.Array, block: jax.Array, start) -> jax.Array:
  return jax.lax.dynamic_update_slice(shard, block, start)


def _bounded(index: Region, shape: tuple[int, ...]) -> Region:
  """The same slices with whole numbers for bounds."""
  return tuple(
      slice(*cut.indices(size)[:2]) for cut, size in zip(index, shape)
  )
