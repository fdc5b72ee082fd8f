"""How a forward pass runs: what changes its speed and memory, no number."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules


@dataclasses.dataclass(frozen=True)
class Execution:
  """Settings of a forward pass, and the mesh that it runs on.

  Attributes:
    dtype: of the activations.
    attention: xla, splash, or auto: splash where the mesh is of TPUs.
      splash_interpret runs that kernel's steps anywhere, slowly.
    remat: what the backward pass computes again. Kept is under `none` the
      result of every matrix product, under `attention` each layer's input and
      its attention, under `layer` its input alone.
    mesh: where the compiler is told how activations lie. None leaves that to
      it, and fits a single device.
  """

  dtype: str = 'float32'
  remat: str = 'none'
  attention: str = 'auto'
  mesh: jax.sharding.Mesh | None = None

  def attention_of_platform(self) -> str:
    """The back end, `auto` resolved."""
    if self.attention != 'auto':
      return self.attention
    on_tpu = (
        self.mesh is not None and self.mesh.devices.flat[0].platform == 'tpu'
    )
    return 'splash' if on_tpu else 'xla'

  # Axis 0 of the activations below are tokens, row after row.

  def spread_tokens(self, x: jax.Array) -> jax.Array:
    """Divides tokens over all of the mesh: the tensor axis takes parts of rows.

    Between layers, so that what they leave for the backward pass is held once.
    """
    return self._place(x, (*mesh_lib.BATCH_AXES, 'tensor'))

  def whole_rows(self, x: jax.Array) -> jax.Array:
    """Divides tokens by rows only: before a product with divided columns."""
    return self._place(x, mesh_lib.BATCH_AXES)

  def divide_columns(self, x: jax.Array) -> jax.Array:
    """Divides axis 1, heads or inner width, over the tensor axis."""
    return self._place(x, mesh_lib.BATCH_AXES, 'tensor')

  def _place(self, x: jax.Array, *axes: Any) -> jax.Array:
    if self.mesh is None or self.mesh.size == 1:
      return x
    spec = PartitionSpec(*axes)
    return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

  def gather_weights(self, params: Any, axes: Any) -> Any:
    """Parameters as a layer multiplies with them: cast, and whole over fsdp.

    Casting first halves what is sent under bfloat16. Experts and their router
    stay as they are; `mixture` gathers them.

    Args:
      params: of one layer.
      axes: their logical axes, the same tree of tuples.
    """
    if self.mesh is None or self.mesh.shape['fsdp'] == 1:
      return params

    def gather(names: tuple[str, ...], leaf: jax.Array) -> jax.Array:
      if 'expert' in names or 'router' in names:
        return leaf
      if leaf.ndim > 1:
        leaf = leaf.astype(self.dtype)
      spec = rules.spec(names, leaf.shape, self.mesh, whole=('fsdp',))
      return jax.lax.with_sharding_constraint(
          leaf, NamedSharding(self.mesh, spec)
      )

    is_names = lambda x: isinstance(x, tuple)
    return jax.tree.map(gather, axes, params, is_leaf=is_names)

  def look_up(self, table_VD: jax.Array, index_T: jax.Array) -> jax.Array:
    """Rows of a table, divided over all of the mesh like `spread_tokens`.

    A device finds the rows of its part of the table; left to itself the
    compiler gathers every token's gradient on every device.
    """
    size = 1 if self.mesh is None else self.mesh.size
    if size == 1 or len(table_VD) % self.mesh.shape['tensor']:
      return self.spread_tokens(jnp.take(table_VD, index_T, axis=0))
    rows, columns = mesh_lib.BATCH_AXES, 'tensor'

    def local(table_VD: jax.Array, index_T: jax.Array) -> jax.Array:
      count = len(table_VD)
      index_T = index_T - jax.lax.axis_index(columns) * count
      is_here_T = (index_T >= 0) & (index_T < count)
      found_TD = jnp.take(table_VD, jnp.where(is_here_T, index_T, 0), axis=0)
      found_TD = jnp.where(is_here_T[:, None], found_TD, 0)
      return jax.lax.psum_scatter(found_TD, columns, tiled=True)

    return jax.shard_map(
        local,
        mesh=self.mesh,
        in_specs=(PartitionSpec(columns), PartitionSpec(rows)),
        out_specs=PartitionSpec((*rows, columns)),
        check_vma=False,
    )(table_VD, index_T)
