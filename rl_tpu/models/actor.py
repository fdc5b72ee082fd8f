"""Log-probabilities and entropies of recorded tokens, without [B, T, V]."""

import jax
import jax.numpy as jnp

from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.types import batch as batch_lib


def logp_and_entropy(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    rows: batch_lib.Rows,
    *,
    temperature: float,
    dtype: str = 'float32',
    remat: bool = False,
    logits_chunk: int = 2048,
) -> tuple[jax.Array, jax.Array]:
  """log pi(x_p | x_<p) and the entropy it was drawn under (L5, L16).

  Args:
    params: the actor's parameters.
    config: its settings.
    rows: packed token rows.
    temperature: divides the logits; the same as in sampling (K14).
    dtype: dtype of activations; logits are float32 all the same (K15).
    remat: recompute layers in the backward pass.
    logits_chunk: tokens whose logits exist at once.

  Returns:
    logp_BT and entropy_BT, float32, at p; 0 at the first position of a
    segment and in padding.

  Raises:
    ValueError: a temperature that is not positive.
  """
  if temperature <= 0:
    raise ValueError(
        f'sampling.temperature = {temperature}: training needs a temperature'
        ' above 0 (1.0 samples from the policy itself).'
    )
  hidden_BTD = decoder.hidden(
      params,
      config,
      rows.token_BT,
      rows.position_BT,
      rows.segment_BT,
      dtype=dtype,
      remat=remat,
  )
  # The last column has no successor; its figure is dropped by the shift.
  target_BT = jnp.roll(rows.token_BT, -1, axis=1)
  logp_BT, entropy_BT = _chunked(
      hidden_BTD,
      target_BT,
      output_kernel(params, config),
      config,
      temperature=temperature,
      chunk=logits_chunk,
  )
  has_past_BT = (rows.position_BT > 0) & (rows.segment_BT >= 0)
  shift = lambda x_BT: jnp.where(has_past_BT, jnp.roll(x_BT, 1, axis=1), 0.0)
  return shift(logp_BT), shift(entropy_BT)


def output_kernel(
    params: decoder.Params, config: config_lib.DecoderConfig
) -> jax.Array:
  """The output layer [D, V]; the embedding's transpose when tied."""
  if config.tie_embeddings:
    return params['embed']['embedding'].T
  return params['lm_head']['kernel']


def logits(
    hidden: jax.Array, kernel_DV: jax.Array, config: config_lib.DecoderConfig
) -> jax.Array:
  """float32 logits of hidden [..., D]; rows without a token are masked."""
  out = jnp.matmul(
      hidden,
      kernel_DV.astype(hidden.dtype),
      preferred_element_type=jnp.float32,
  )
  usable = config.usable_vocab
  if usable is None or usable == config.vocab_size:
    return out
  return jnp.where(
      jnp.arange(config.vocab_size) < usable, out, attention.MASKED
  )


def _chunked(
    hidden_BTD, target_BT, kernel_DV, config, *, temperature, chunk
) -> tuple[jax.Array, jax.Array]:
  """Cuts T into chunks of about `chunk` tokens of all rows."""

  @jax.checkpoint
  def measure(hidden_BTD, target_BT, kernel_DV):
    scaled = logits(hidden_BTD, kernel_DV, config) / temperature
    return measure_logits(scaled, target_BT)

  B, T = target_BT.shape
  size = chunk_length(T, max(1, chunk // B))
  if size == T:
    return measure(hidden_BTD, target_BT, kernel_DV)
  split = lambda x: jnp.moveaxis(
      x.reshape(B, T // size, size, *x.shape[2:]), 1, 0
  )
  logp, entropy = jax.lax.map(
      lambda part: measure(*part, kernel_DV),
      (split(hidden_BTD), split(target_BT)),
  )
  join = lambda x: jnp.moveaxis(x, 0, 1).reshape(B, T)
  return join(logp), join(entropy)


def measure_logits(
    scaled: jax.Array, target: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Log-softmax at `target` and the entropy, over the last axis."""
  top = jax.lax.stop_gradient(jnp.max(scaled, axis=-1, keepdims=True))
  centred = scaled - top
  weight = jnp.exp(centred)
  total = jnp.sum(weight, axis=-1)
  log_total = jnp.log(total)
  chosen = jnp.take_along_axis(centred, target[..., None], axis=-1)[..., 0]
  mean = jnp.sum(weight * centred, axis=-1) / total
  return chosen - log_total, log_total - mean


def chunk_length(length: int, limit: int) -> int:
  """Largest divisor of `length` that does not exceed `limit`."""
  return max(d for d in range(1, min(length, limit) + 1) if length % d == 0)
