"""The critic: a value head on a backbone of its own, or on the actor's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import execution as execution_lib
from rl_tpu.types import batch as batch_lib

# The range [vmin, vmax] of a head over bins (C11); None is a linear head.
ValueRange = tuple[float, float] | None


def init_params(
    actor_params: decoder.Params,
    *,
    head_bias: float,
    bins: int | None = None,
    value_range: ValueRange = None,
) -> dict[str, Any]:
  """Copies the actor's backbone and adds a head whose value is `head_bias`."""
  backbone = jax.tree.map(jnp.copy, decoder.backbone(actor_params))
  head = init_head(
      actor_params, head_bias=head_bias, bins=bins, value_range=value_range
  )
  return {'backbone': backbone, 'value_head': head}


def init_head(
    actor_params: decoder.Params,
    *,
    head_bias: float,
    bins: int | None = None,
    value_range: ValueRange = None,
) -> dict[str, jax.Array]:
  """A head that says `head_bias` everywhere: its kernel is 0.

  Args:
    actor_params: give the width.
    head_bias: the value at the start.
    bins: bins of the value range; None is one number.
    value_range: the range of the bins.
  """
  width = actor_params['embed']['embedding'].shape[1]
  if bins is None:
    return {
        'kernel': jnp.zeros(width, jnp.float32),
        'bias': jnp.asarray(head_bias, jnp.float32),
    }
  return {
      'kernel': jnp.zeros((width, bins), jnp.float32),
      'bias': jnp.asarray(_tilt(head_bias, bins, value_range), jnp.float32),
  }


def _tilt(value: float, bins: int, value_range: ValueRange) -> np.ndarray:
  """Logits linear in the bin centre whose expected centre is `value`.

  Of all distributions with that mean it is the widest. The mean grows with
  the slope, so the slope is found by halving; the ends of the range, which no
  distribution over centres reaches, give the steepest slope.
  """
  low, high = value_range
  centres = np.linspace(-1.0, 1.0, 2 * bins + 1)[1::2]
  wanted = 2.0 * (value - low) / (high - low) - 1.0
  below, above = -30.0, 30.0
  for _ in range(60):
    slope = 0.5 * (below + above)
    weight = np.exp(slope * centres - np.max(slope * centres))
    if np.average(centres, weights=weight) < wanted:
      below = slope
    else:
      above = slope
  return slope * centres


def head_axes(*, bins: int | None = None) -> dict[str, tuple[str, ...]]:
  """Names of the dimensions of the head's parameters."""
  if bins is None:
    return {'kernel': ('head',), 'bias': ()}
  return {'kernel': ('head', 'head'), 'bias': ('head',)}


def logical_axes(
    config: config_lib.DecoderConfig, *, bins: int | None = None
) -> dict[str, Any]:
  """Names of the dimensions of the critic's parameters."""
  return {
      'backbone': decoder.backbone(decoder.logical_axes(config)),
      'value_head': head_axes(bins=bins),
  }


def hidden(
    params: dict[str, Any],
    config: config_lib.DecoderConfig,
    rows: batch_lib.Rows,
    *,
    execution: execution_lib.Execution = execution_lib.Execution(),
) -> jax.Array:
  """What the head reads: at q the state after x_q."""
  return decoder.hidden(
      params['backbone'],
      config,
      rows.token_BT,
      rows.position_BT,
      rows.segment_BT,
      execution=execution,
  )


def value_head(
    params: dict[str, Any],
    config: config_lib.DecoderConfig,
    rows: batch_lib.Rows,
    *,
    value_range: ValueRange = None,
    execution: execution_lib.Execution = execution_lib.Execution(),
) -> jax.Array:
  """head_BT float32: at q the value of the state after x_q, V_{q+1} (V0)."""
  hidden_BTD = hidden(params, config, rows, execution=execution)
  out = from_hidden(params['value_head'], hidden_BTD)
  return out if value_range is None else expected(out, value_range)


def from_hidden(head: dict[str, jax.Array], hidden_BTD: jax.Array) -> jax.Array:
  """The head's output, float32 [B, T], or [B, T, M] logits over bins."""
  return hidden_BTD.astype(jnp.float32) @ head['kernel'] + head['bias']


def expected(
    logits_BTM: jax.Array, value_range: tuple[float, float]
) -> jax.Array:
  """The expected bin centre (C11)."""
  low, high = value_range
  bins = logits_BTM.shape[-1]
  centre_M = low + (jnp.arange(bins) + 0.5) * (high - low) / bins
  return jnp.sum(jax.nn.softmax(logits_BTM, axis=-1) * centre_M, axis=-1)


def align(head: jax.Array, position_BT: jax.Array) -> jax.Array:
  """V_p (or its logits) at p: the head one position earlier; 0 at position 0.

  Args:
    head: [B, T], or [B, T, M].
    position_BT: position inside the segment.
  """
  if head.shape[:2] != position_BT.shape:
    raise ValueError(
        f'head has shape {head.shape}, but position_BT {position_BT.shape}.'
    )
  is_inside = position_BT > 0
  if head.ndim == 3:
    is_inside = is_inside[..., None]
  return jnp.where(is_inside, jnp.roll(head, 1, axis=1), 0.0)
