"""How a forward pass runs: what changes its speed and memory, not its numbers.
"""

import dataclasses

import jax
from jax.sharding import NamedSharding, PartitionSpec

from rl_tpu.sharding import mesh as mesh_lib

# What the backward pass finds in memory. Under `none` that is the result of
# every matrix product, under `attention` each layer's input and its attention,
# under `layer` its input alone.
REMATS = ('none', 'attention', 'layer')


@dataclasses.dataclass(frozen=True)
class Execution:
  """Settings of a forward pass, and the mesh that it runs on.

  Attributes:
    dtype: of the activations.
    remat: what is computed again in the backward pass, one of REMATS.
    mesh: where the compiler is told how activations lie. None leaves that to
      it, and fits a single device.
  """

  dtype: str = 'float32'
  remat: str = 'none'
  mesh: jax.sharding.Mesh | None = None

  def spread_tokens(self, x: jax.Array) -> jax.Array:
    """Divides axis 0, tokens in the order of rows, over all of the mesh.

    Rows lie on the batch axes and the tensor axis takes parts of a row, so
    that what a layer leaves for the backward pass is held once.
    """
    if self.mesh is None:
      return x
    axes = (*mesh_lib.BATCH_AXES, 'tensor')
    sharding = NamedSharding(self.mesh, PartitionSpec(axes))
    return jax.lax.with_sharding_constraint(x, sharding)
