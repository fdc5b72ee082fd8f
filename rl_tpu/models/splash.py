"""Attention by the splash kernel of JAX's Pallas operations, for TPUs.

The same as `attention.packed`, in blocks that never leave the chip's vector
memory: forward and backward pass hold no scores.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention

LANES = 128
_BLOCKS = (512, 256, 128)
# Both of what the backward pass reads: the output and its log-normaliser.
SAVED = 'attended'


def packed(
    query_BTHK: jax.Array,
    key_BTHK: jax.Array,
    value_BTHK: jax.Array,
    segment_BT: jax.Array,
    *,
    scalar: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    interpret: bool = False,
) -> jax.Array:
  """Attention inside the segments of packed rows, as `attention.packed`.

  Args:
    query_BTHK: rotated queries.
    key_BTHK: rotated keys; their heads may be fewer, by a whole factor.
    value_BTHK: values, as many heads as keys.
    segment_BT: segment ids, -1 in padding.
    scalar: scores are divided by its root; K where it is None.
    softcap: bound of the scores by a tanh, None for none.
    window: positions that each one sees, its own included; None for all.
    interpret: run the kernel's steps as plain operations, on any device.

  Raises:
    ValueError: a number of positions that blocks of 128 do not divide.
  """
  B, T, H, K = query_BTHK.shape
  scale = 1.0 / math.sqrt(scalar or K)
  query_BTHK = query_BTHK * jnp.asarray(scale, query_BTHK.dtype)
  kernel = _kernel(T, H, window, softcap, interpret)
  heads_first = lambda x: jnp.swapaxes(_to_lanes(x), 1, 2)
  segment_ids = splash_attention.SegmentIds(q=segment_BT, kv=segment_BT)
  out_BHTK = jax.vmap(kernel)(
      heads_first(query_BTHK),
      heads_first(key_BTHK),
      heads_first(value_BTHK),
      segment_ids,
  )
  return jnp.swapaxes(out_BHTK[..., :K], 1, 2)


def _kernel(length: int, heads: int, window, softcap, interpret: bool):
  """The kernel of one row."""
  blocks = [size for size in _BLOCKS if length % size == 0]
  if not blocks:
    raise ValueError(
        f'splash attention over {length} positions: it needs a multiple of'
        f' {LANES} (batching.row_length), or model.attention=xla.'
    )
  shape, size = (length, length), blocks[0]
  if window is None or window >= length:
    mask = splash_attention.CausalMask(shape)
  else:
    mask = splash_attention.LocalMask(shape, (window - 1, 0), 0)
  return splash_attention.make_splash_mha(
      splash_attention.MultiHeadMask([mask] * heads),
      head_shards=1,
      q_seq_shards=1,
      block_sizes=splash_attention.BlockSizes(
          block_q=size,
          block_kv=size,
          block_kv_compute=size,
          block_q_dkv=size,
          block_kv_dkv=size,
          block_kv_dkv_compute=size,
          block_q_dq=size,
          block_kv_dq=size,
      ),
      attn_logits_soft_cap=softcap,
      residual_checkpoint_name=SAVED,
      interpret=interpret,
  )


def _to_lanes(x: jax.Array) -> jax.Array:
  """Pads the heads' width with zeros, which change no score."""
  missing = -x.shape[-1] % LANES
  return jnp.pad(x, ((0, 0),) * 3 + ((0, missing),)) if missing else x
