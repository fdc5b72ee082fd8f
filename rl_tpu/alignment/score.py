"""Log-probabilities of given tokens by the trainer and by the sampler (O4)."""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import config as config_lib
from rl_tpu.models import decode
from rl_tpu.models import decoder
from rl_tpu.models import execution as execution_lib
from rl_tpu.types import batch as batch_lib


def score(
    params: decoder.Params,
    config: config_lib.DecoderConfig,
    ids: Sequence[int],
    *,
    dtype: str = 'float32',
    temperature: float = 1.0,
) -> dict[str, Any]:
  """Scores ids[1:], each given what precedes it.

  Args:
    params: the actor's parameters.
    config: its settings.
    ids: token ids, at least two.
    dtype: dtype of activations.
    temperature: divides the logits.

  Returns:
    `trainer`: by the training forward pass; `sampler`: by the sampler's
    prefill and decode steps with the tokens forced; `max_abs_diff`: the
    largest distance between the two.
  """
  if len(ids) < 2:
    raise ValueError(f'score needs at least two token ids, got {len(ids)}.')
  trainer = _trainer(params, config, ids, dtype, temperature)
  sampler = decode.forced_logprobs(
      params, config, ids, dtype=dtype, temperature=temperature
  )
  sampler = np.asarray(sampler, np.float32)
  return {
      'trainer': trainer.tolist(),
      'sampler': sampler.tolist(),
      'max_abs_diff': float(np.max(np.abs(trainer - sampler))),
  }


def _trainer(params, config, ids, dtype, temperature) -> np.ndarray:
  """The training pass over one row, padded to few lengths."""
  length = len(ids)
  padded = max(16, 1 << (length - 1).bit_length())
  place = np.arange(padded, dtype=np.int32)
  token = np.zeros(padded, np.int32)
  token[:length] = ids
  is_real = place < length
  rows = batch_lib.Rows(
      token_BT=token[None],
      position_BT=np.where(is_real, place, 0)[None],
      segment_BT=np.where(is_real, 0, -1).astype(np.int32)[None],
      action_mask_BT=is_real[None],
      behaviour_logp_BT=np.zeros((1, padded), np.float32),
  )
  rows = jax.tree.map(jnp.asarray, rows)
  logp_BT = trainer_logp(params, rows, config, dtype, temperature)
  return np.asarray(logp_BT)[0, 1:length]


@functools.partial(
    jax.jit, static_argnames=('config', 'dtype', 'temperature')
)
def trainer_logp(
    params: decoder.Params,
    rows: batch_lib.Rows,
    config: config_lib.DecoderConfig,
    dtype: str,
    temperature: float,
) -> jax.Array:
  """logp_BT by the training forward pass, as in `actor`."""
  execution = execution_lib.Execution(dtype=dtype)
  return actor.logp_and_entropy(
      params, config, rows, temperature=temperature, execution=execution
  )[0]
