"""Causal attention inside the segments of packed rows.

Queries are taken in blocks, and a block reads no key behind its last query:
less than the full square is computed, and no [T, T] array of all heads
exists. The backward pass recomputes the weights from their log-normaliser.
"""

from collections.abc import Iterator
import functools
import math

import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from rl_tpu.models import matrix

MASKED = -1e30  # Finite: a difference of two of them is 0, not NaN.
MIN_BLOCK = 128
MAX_BLOCKS = 8
SAVED = ('attended', 'attention_normaliser')


def packed(
    query_BTHK: jax.Array,
    key_BTHK: jax.Array,
    value_BTHK: jax.Array,
    segment_BT: jax.Array,
    *,
    scalar: float | None = None,
    softcap: float | None = None,
    window: int | jax.Array | None = None,
) -> jax.Array:
  """Attention of every position to its segment's positions up to itself.

  Args:
    query_BTHK: rotated queries.
    key_BTHK: rotated keys; their heads may be fewer, by a whole factor.
    value_BTHK: values, as many heads as keys.
    segment_BT: segment ids. Padding (-1) attends to padding before it, so
      that its outputs are finite.
    scalar: scores are divided by its root; K where it is None.
    softcap: bound of the scores by a tanh, None for none.
    window: positions that each one sees, its own included; None for all.

  Returns:
    The attended values, shaped like the queries.
  """
  B, T, H, K = query_BTHK.shape
  groups = key_BTHK.shape[2]
  scale = 1.0 / math.sqrt(scalar or K)
  query = query_BTHK * jnp.asarray(scale, query_BTHK.dtype)
  query = jnp.swapaxes(query, 1, 2).reshape(B, groups, H // groups, T, K)
  key, value = (jnp.swapaxes(x, 1, 2) for x in (key_BTHK, value_BTHK))
  out = _attend(query, key, value, segment_BT, window, softcap)
  return jnp.swapaxes(out.reshape(B, H, T, K), 1, 2)


# Below: query [B, G, R, T, K] for G key heads with R query heads each, key and
# value [B, G, T, K].


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(query, key, value, segment_BT, window, softcap):
  return _forward(query, key, value, segment_BT, window, softcap)[0]


def _forward(query, key, value, segment_BT, window, softcap):
  outs, normalisers = [], []
  for start, stop in _blocks(segment_BT.shape[1]):
    score = cap(_score(query, key, start, stop), softcap)
    visible = _visible(segment_BT, window, start, stop)
    score = jnp.where(visible, score, MASKED)
    top = jnp.max(score, axis=-1, keepdims=True)
    weight = jnp.exp(score - top)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    out = jnp.einsum(
        'bgrts,bgsk->bgrtk', weight.astype(value.dtype), value[:, :, :stop]
    )
    outs.append((out / total).astype(value.dtype))
    normalisers.append(top + jnp.log(total))
  join = lambda parts, name: ad_checkpoint.checkpoint_name(
      jnp.concatenate(parts, axis=3), name
  )
  out, normaliser = map(join, (outs, normalisers), SAVED)
  saved = query, key, value, segment_BT, window, out, normaliser
  return out, saved


def _backward(softcap, saved, out_grad):
  query, key, value, segment_BT, window, out, normaliser = saved
  wide = lambda x: x.astype(jnp.float32)
  mean = jnp.sum(wide(out) * wide(out_grad), axis=-1, keepdims=True)
  query_turned, out_grad_turned = matrix.turned(query), matrix.turned(out_grad)
  query_grads = []
  key_grad, value_grad = (jnp.zeros_like(x.mT) for x in (key, value))
  for start, stop in _blocks(segment_BT.shape[1]):
    rows = lambda x: x[:, :, :, start:stop]
    score = cap(_score(query, key, start, stop), softcap)
    visible = _visible(segment_BT, window, start, stop)
    weight = jnp.exp(jnp.where(visible, score, MASKED) - rows(normaliser))
    weight_grad = jnp.einsum(
        'bgrtk,bgsk->bgrts',
        rows(out_grad),
        value[:, :, :stop],
        preferred_element_type=jnp.float32,
    )
    score_grad = weight * (weight_grad - rows(mean))
    if softcap is not None:  # The slope of the tanh.
      score_grad = score_grad * (1.0 - jnp.square(score / softcap))
    score_grad = score_grad.astype(query.dtype)
    query_grads.append(
        jnp.einsum('bgrts,bgsk->bgrtk', score_grad, key[:, :, :stop])
    )
    back = lambda x, y: jnp.einsum('bgrkt,bgrts->bgks', x[..., start:stop], y)
    key_grad = key_grad.at[..., :stop].add(back(query_turned, score_grad))
    value_grad = value_grad.at[..., :stop].add(
        back(out_grad_turned, weight.astype(value.dtype))
    )
  query_grad = jnp.concatenate(query_grads, axis=3)
  return query_grad, key_grad.mT, value_grad.mT, None, None


_attend.defvjp(_forward, _backward)


def _blocks(length: int) -> Iterator[tuple[int, int]]:
  size = max(MIN_BLOCK, -(-length // MAX_BLOCKS))
  for start in range(0, length, size):
    yield start, min(length, start + size)


def cap(score: jax.Array, softcap: float | None) -> jax.Array:
  """Scores or logits, bounded by `softcap` unless it is None."""
  if softcap is None:
    return score
  return softcap * jnp.tanh(score / softcap)


def _score(query, key, start: int, stop: int) -> jax.Array:
  """float32 scores of one block of queries."""
  return jnp.einsum(
      'bgrtk,bgsk->bgrts',
      query[:, :, :, start:stop],
      key[:, :, :stop],
      preferred_element_type=jnp.float32,
  )


def _visible(segment_BT, window, start: int, stop: int) -> jax.Array:
  """True where a query of the block may see a key."""
  query_time, key_time = jnp.arange(start, stop)[:, None], jnp.arange(stop)
  visible = query_time >= key_time
  if window is not None:
    visible = visible & (query_time - key_time < window)
  same = segment_BT[:, start:stop, None] == segment_BT[:, None, :stop]
  return (visible & same)[:, None, None]
