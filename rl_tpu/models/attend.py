"""Which attention runs, and how it is divided over the mesh.

Rows lie on the batch axes and heads on the tensor axis, so that no device
needs anything of another: under `shard_map` the compiler cannot think of
another way.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import execution as execution_lib
from rl_tpu.models import splash
from rl_tpu.sharding import mesh as mesh_lib

Windows = tuple[int | None, ...]


def attend(
    query_BTHK: jax.Array,
    key_BTHK: jax.Array,
    value_BTHK: jax.Array,
    segment_BT: jax.Array,
    *,
    config: config_lib.DecoderConfig,
    execution: execution_lib.Execution,
    windows: Windows,
    kind: jax.Array | None,
) -> jax.Array:
  """Attention of every position to its segment's positions up to itself.

  Args:
    query_BTHK: rotated queries.
    key_BTHK: rotated keys; their heads may be fewer, by a whole factor.
    value_BTHK: values, as many heads as keys.
    segment_BT: segment ids, -1 in padding.
    config: scale and soft cap of the scores.
    execution: back end and mesh.
    windows: positions that each one sees, by kind of layer; None for all.
    kind: which of them this layer is; None where there is one kind.

  Returns:
    The attended values, shaped like the queries.
  """
  back_end = _BACK_ENDS[execution.attention_of_platform()]
  run = functools.partial(back_end, config=config, windows=windows)
  if execution.mesh is None or execution.mesh.size == 1:
    return run(query_BTHK, key_BTHK, value_BTHK, segment_BT, kind)
  tensor = execution.mesh.shape['tensor']
  head_axis = None
  if query_BTHK.shape[2] % tensor == 0:
    head_axis = 'tensor'
    repeats = key_repeats(key_BTHK.shape[2], query_BTHK.shape[2], tensor)
    key_BTHK, value_BTHK = (
        jnp.repeat(x, repeats, axis=2) for x in (key_BTHK, value_BTHK)
    )
  rows = PartitionSpec(mesh_lib.BATCH_AXES)
  heads = PartitionSpec(mesh_lib.BATCH_AXES, None, head_axis)
  return jax.shard_map(
      run,
      mesh=execution.mesh,
      in_specs=(heads, heads, heads, rows, PartitionSpec()),
      out_specs=heads,
      check_vma=False,
  )(query_BTHK, key_BTHK, value_BTHK, segment_BT, kind)


def key_repeats(key_heads: int, heads: int, tensor: int) -> int:
  """How often a key head is repeated for every device to hold whole ones.

  The tensor axis divides `heads`, those of the queries.
  """
  least = tensor // math.gcd(key_heads, tensor)
  return least if heads % (key_heads * least) == 0 else heads // key_heads


def _xla(query, key, value, segment_BT, kind, *, config, windows: Windows):
  window = windows[0]
  if kind is not None:
    length = segment_BT.shape[1]
    window = jnp.asarray([w or length for w in windows])[kind]
  return attention.packed(
      query,
      key,
      value,
      segment_BT,
      scalar=config.query_scalar,
      softcap=config.attention_softcap,
      window=window,
  )


def _splash(
    query, key, value, segment_BT, kind, *, config, windows, interpret=False
):
  def with_window(window: int | None) -> Callable[..., jax.Array]:
    return functools.partial(
        splash.packed,
        scalar=config.query_scalar,
        softcap=config.attention_softcap,
        window=window,
        interpret=interpret,
    )

  arrays = query, key, value, segment_BT
  if kind is None:
    return with_window(windows[0])(*arrays)
  return jax.lax.switch(kind, [with_window(w) for w in windows], *arrays)


_BACK_ENDS = {
    'xla': _xla,
    'splash': _splash,
    'splash_interpret': functools.partial(_splash, interpret=True),
}
