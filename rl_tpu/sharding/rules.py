"""From logical names of dimensions to mesh axes."""

from typing import Any

import jax

from rl_tpu.sharding import mesh as mesh_lib

RULES = {
    'layer': None,
    'vocab': 'tensor',
    'width': 'fsdp',
    'heads': 'tensor',
    'kv_heads': 'tensor',
    'head_width': None,
    'mlp': 'tensor',
    'expert': 'expert',
    'router': None,
    'head': None,
    'rank': None,
}


def param_shardings(
    axes_tree: Any, mesh: jax.sharding.Mesh, shapes_tree: Any
) -> Any:
  """Sharding of every parameter.

  Args:
    axes_tree: tuples of logical names, one per dimension.
    mesh: the mesh.
    shapes_tree: the same tree of arrays or of anything with a `shape`.

  Returns:
    The same tree of NamedSharding. A dimension that its mesh axis does not
    divide is replicated.
  """
  return jax.tree.map(
      lambda names, array: jax.sharding.NamedSharding(
          mesh, spec(names, tuple(array.shape), mesh)
      ),
      axes_tree,
      shapes_tree,
      is_leaf=lambda x: isinstance(x, tuple),
  )


def spec(
    names: tuple[str, ...],
    shape: tuple[int, ...],
    mesh: jax.sharding.Mesh,
    *,
    whole: tuple[str, ...] = (),
) -> jax.sharding.PartitionSpec:
  """Where one parameter lies.

  Args:
    names: logical name of every dimension.
    shape: their sizes.
    mesh: the mesh.
    whole: mesh axes that are not used, as after a gather over them.

  Raises:
    ValueError: another number of names than of dimensions.
  """
  if len(names) != len(shape):
    raise ValueError(f'axes {names} do not name the dimensions of {shape}.')
  fits = lambda axis, size: axis is not None and size % mesh.shape[axis] == 0
  axes = [
      None if RULES[name] in whole else RULES[name] for name in names
  ]
  return jax.sharding.PartitionSpec(
      *(axis if fits(axis, size) else None for axis, size in zip(axes, shape))
  )


def abstract(tree: Any, shardings: Any) -> Any:
  """Shapes and dtypes of a tree with their shardings, nothing allocated.

  Args:
    tree: arrays, or anything with a shape and a dtype.
    shardings: the same tree of shardings.
  """
  return jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=sharding
      ),
      tree,
      shardings,
  )


def rows_sharding(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
  """Rows over the batch axes, positions whole."""
  spec = jax.sharding.PartitionSpec(mesh_lib.BATCH_AXES)
  return jax.sharding.NamedSharding(mesh, spec)


def replicated(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
  """The whole array on every device."""
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
