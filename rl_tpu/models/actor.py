"""Log-probabilities and entropies of recorded tokens, without [B, T, V]."""

import functools

import jax
import jax.numpy as jnp

from rl_tpu.models import attention
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import execution as execution_lib
from rl_tpu.models import matrix
from rl_tpu.types import batch as batch_lib


def logp_and_entropy(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    rows: batch_lib.Rows,
    *,
    temperature: float,
    execution: execution_lib.Execution = execution_lib.Execution(),
    logits_chunk: int = 2048,
) -> tuple[jax.Array, jax.Array]:
  """log pi(x_p | x_<p) and the entropy it was drawn under (L5, L16).

  Args:
    params: the actor's parameters.
    config: its settings.
    rows: packed token rows.
    temperature: divides the logits; the same as in sampling (K14).
    execution: how the layers run; logits are float32 in every dtype (K15).
    logits_chunk: tokens whose logits exist at once.

  Returns:
    logp_BT and entropy_BT, float32, at p; 0 at the first position of a
    segment and in padding.

  Raises:
    ValueError: a temperature that is not positive.
  """
  hidden_BTD = decoder.hidden(
      params,
      config,
      rows.token_BT,
      rows.position_BT,
      rows.segment_BT,
      execution=execution,
  )
  return from_hidden(
      params,
      config,
      hidden_BTD,
      rows,
      temperature=temperature,
      logits_chunk=logits_chunk,
  )


def from_hidden(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    hidden_BTD: jax.Array,
    rows: batch_lib.Rows,
    *,
    temperature: float,
    logits_chunk: int = 2048,
) -> tuple[jax.Array, jax.Array]:
  """The same from hidden states that are there already (C10).

  Raises:
    ValueError: a temperature that is not positive.
  """
  if temperature <= 0:
    raise ValueError(
        f'sampling.temperature = {temperature}: training needs a temperature'
        ' above 0 (1.0 samples from the policy itself).'
    )
  # The last column has no successor; its figure is dropped by the shift.
  ahead = lambda x: jnp.roll(x, -1, axis=1)
  support_BTM = rows.support_BTM
  logp_BT, entropy_BT = _chunked(
      hidden_BTD,
      ahead(rows.token_BT),
      None if support_BTM is None else ahead(support_BTM),
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
  kernel_DV = kernel_DV.astype(hidden.dtype)
  out = matrix.product(hidden, kernel_DV, dtype='float32')
  out = attention.cap(out, config.logit_softcap)
  usable = config.usable_vocab
  if usable is None or usable == config.vocab_size:
    return out
  return jnp.where(
      jnp.arange(config.vocab_size) < usable, out, attention.MASKED
  )


def _chunked(
    hidden_BTD,
    target_BT,
    support_BTM,
    kernel_DV,
    config,
    *,
    temperature,
    chunk,
) -> tuple[jax.Array, jax.Array]:
  """Cuts T into chunks of about `chunk` tokens of all rows."""
  B, T = target_BT.shape
  size = chunk_length(T, max(1, chunk // B))
  if size == T:
    return _measure(
        hidden_BTD, target_BT, support_BTM, kernel_DV, config, temperature
    )
  split = lambda x: jnp.moveaxis(
      x.reshape(B, T // size, size, *x.shape[2:]), 1, 0
  )
  logp, entropy = jax.lax.map(
      lambda part: _measure(*part, kernel_DV, config, temperature),
      jax.tree.map(split, (hidden_BTD, target_BT, support_BTM)),
  )
  join = lambda x: jnp.moveaxis(x, 0, 1).reshape(B, T)
  return join(logp), join(entropy)


def chunk_length(length: int, limit: int) -> int:
  """Largest divisor of `length` that does not exceed `limit`."""
  return max(d for d in range(1, min(length, limit) + 1) if length % d == 0)


def measure_logits(
    scaled: jax.Array,
    target: jax.Array,
    support: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Log-softmax at a token, its entropy and its log-normaliser.

  Args:
    scaled: [..., V] logits over the temperature.
    target: [...] ids.
    support: [..., M] ids, as for `restrict`. A target outside its support,
      which no sampler has drawn, has log-prob -inf.
  """
  scaled = restrict(scaled, support)
  top = jnp.max(scaled, axis=-1)
  centred = scaled - top[..., None]
  weight = jnp.exp(centred)
  total = jnp.sum(weight, axis=-1)
  log_total = jnp.log(total)
  chosen = jnp.take_along_axis(centred, target[..., None], axis=-1)[..., 0]
  mean = jnp.sum(weight * centred, axis=-1) / total
  logp = jnp.where(_outside(support, target), -jnp.inf, chosen - log_total)
  return logp, log_total - mean, top + log_total


def restrict(
    scaled: jax.Array, support: jax.Array | None
) -> jax.Array:
  """Masks what a token could not have been drawn from (L16).

  Args:
    scaled: [..., V].
    support: [..., M] ids, -1 behind them; all -1, or None, masks nothing.
  """
  if support is None:
    return scaled
  size = scaled.shape[-1]
  mark = lambda ids: jnp.zeros(size, bool).at[ids].set(True, mode='drop')
  for _ in support.shape[:-1]:
    mark = jax.vmap(mark)
  # An id behind the support goes past the end and is dropped.
  member = mark(jnp.where(support >= 0, support, size))
  is_whole = ~jnp.any(support >= 0, axis=-1, keepdims=True)
  return jnp.where(member | is_whole, scaled, attention.MASKED)


def _outside(support: jax.Array | None, target: jax.Array) -> jax.Array:
  """True for targets that their support does not hold."""
  if support is None:
    return jnp.zeros(target.shape, bool)
  holds = jnp.any(support == target[..., None], axis=-1)
  return jnp.any(support >= 0, axis=-1) & ~holds


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _measure(hidden, target, support, kernel_DV, config, temperature):
  """Log-prob of `target` and entropy of one chunk, under its support.

  Its own gradient, so that the logits are not kept but made again, and the
  chosen token's share is no scatter.
  """
  return _measure_forward(
      hidden, target, support, kernel_DV, config, temperature
  )[0]


def _measure_forward(hidden, target, support, kernel_DV, config, temperature):
  scaled = logits(hidden, kernel_DV, config) / temperature
  logp, entropy, normaliser = measure_logits(scaled, target, support)
  saved = hidden, target, support, kernel_DV, entropy, normaliser
  return (logp, entropy), saved


def _measure_backward(config, temperature, saved, grads):
  hidden, target, support, kernel_DV, entropy, normaliser = saved
  logp_grad, entropy_grad = (grad[..., None] for grad in grads)
  out, pull = jax.vjp(
      lambda hidden, kernel_DV: logits(hidden, kernel_DV, config),
      hidden,
      kernel_DV,
  )
  # With p = softmax(z): d log p_t / dz_v = [v = t] - p_v and
  # d entropy / dz_v = -p_v (log p_v + entropy).
  logp = restrict(out / temperature, support) - normaliser[..., None]
  is_target = jnp.arange(config.vocab_size) == target[..., None]
  spread = logp_grad + entropy_grad * (logp + entropy[..., None])
  scaled_grad = jnp.where(is_target, logp_grad, 0.0) - jnp.exp(logp) * spread
  hidden_grad, kernel_grad = pull(scaled_grad / temperature)
  return hidden_grad, None, None, kernel_grad


_measure.defvjp(_measure_forward, _measure_backward)
