"""The device mesh: axes data, fsdp, expert and tensor."""

from collections.abc import Sequence
import math

import jax
from jax.experimental import mesh_utils
import numpy as np

from rl_tpu.config import schema

AXES = ('data', 'fsdp', 'expert', 'tensor')
# All but `tensor`: what is not split by experts is split by rows there.
BATCH_AXES = ('data', 'fsdp', 'expert')


def make_mesh(
    config: schema.MeshConfig, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
  """Builds the mesh over all devices, or those given.

  Args:
    config: axis sizes; one of them may be -1 and takes what is left.
    devices: defaults to every device of the program. Of several slices the
      axis data counts the slices first: nothing else crosses between them.

  Returns:
    A mesh whose axes are of type Auto: the compiler places what the
    shardings of parameters and rows leave open.

  Raises:
    ValueError: sizes that do not multiply to the number of devices, or an
      axis data that the slices do not divide.
  """
  devices = list(jax.devices() if devices is None else devices)
  sizes = _sizes(config, len(devices))
  auto = (jax.sharding.AxisType.Auto,) * len(AXES)
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  if slices > 1:
    if sizes[0] % slices:
      raise ValueError(
          f'mesh.data = {sizes[0]}: the devices are in {slices} slices, which'
          ' only the axis data may cross; use a multiple of that.'
      )
    inner = (sizes[0] // slices, *sizes[1:])
    grid = mesh_utils.create_hybrid_device_mesh(
        inner, (slices, 1, 1, 1), devices
    )
    return jax.sharding.Mesh(grid, AXES, axis_types=auto)
  if devices[0].platform == 'tpu' or len(devices) == len(jax.devices()):
    return jax.make_mesh(sizes, AXES, axis_types=auto, devices=devices)
  grid = np.asarray(devices).reshape(sizes)
  return jax.sharding.Mesh(grid, AXES, axis_types=auto)


def _sizes(config: schema.MeshConfig, devices: int) -> tuple[int, ...]:
  sizes = {axis: getattr(config, axis) for axis in AXES}
  text = ', '.join(f'mesh.{axis} = {size}' for axis, size in sizes.items())
  for axis, size in sizes.items():
    if size == 0 or size < -1:
      raise ValueError(
          f'mesh.{axis} = {size}: an axis size is at least 1, or -1 for what'
          ' is left of the devices.'
      )
  free = [axis for axis, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise ValueError(
        f'{text}: only one axis may be -1; give the others a size.'
    )
  taken = math.prod(size for size in sizes.values() if size != -1)
  if devices % taken or (not free and taken != devices):
    raise ValueError(
        f'{text}: the sizes multiply to {taken}, which does not divide the'
        f' {devices} devices; set sizes whose product is {devices}, or one'
        ' of them to -1.'
    )
  for axis in free:
    sizes[axis] = devices // taken
  return tuple(sizes.values())


def batch_shards(mesh: jax.sharding.Mesh) -> int:
  """Number of parts that the rows of a batch are cut into."""
  return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_rows(mesh: jax.sharding.Mesh, rows: int, setting: str) -> None:
  """Refuses a number of rows that the batch axes do not divide (K30).

  Args:
    mesh: the mesh.
    rows: rows of one jitted call.
    setting: the setting's name, as the user writes it.

  Raises:
    ValueError: naming rows, axes and setting.
  """
  shards = batch_shards(mesh)
  if rows % shards:
    axes = ' x '.join(f'{axis} {mesh.shape[axis]}' for axis in BATCH_AXES)
    raise ValueError(
        f'{setting} = {rows} is not divisible by the {shards} shards of the'
        f' mesh axes {axes}; use a multiple of {shards}.'
    )
