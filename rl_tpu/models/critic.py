"""The critic: a backbone of its own and a linear value head."""

from typing import Any

import jax
import jax.numpy as jnp

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import shapes


def init_params(
    actor_params: decoder.Params, *, head_bias: float
) -> dict[str, Any]:
  """Copies the actor's backbone and adds a head whose value is `head_bias`."""
  backbone = {
      name: jax.tree.map(jnp.copy, actor_params[name])
      for name in decoder.BACKBONE
  }
  width = actor_params['embed']['embedding'].shape[1]
  head = {
      'kernel': jnp.zeros(width, jnp.float32),
      'bias': jnp.asarray(head_bias, jnp.float32),
  }
  return {'backbone': backbone, 'value_head': head}


def logical_axes(config: config_lib.DecoderConfig) -> dict[str, Any]:
  """Names of the dimensions of the critic's parameters."""
  axes = decoder.logical_axes(config)
  return {
      'backbone': {name: axes[name] for name in decoder.BACKBONE},
      'value_head': {'kernel': ('head',), 'bias': ()},
  }


def value_head(
    params: dict[str, Any],
    config: config_lib.DecoderConfig,
    rows: batch_lib.Rows,
    *,
    dtype: str = 'float32',
    remat: bool = False,
) -> jax.Array:
  """head_BT float32: at q the value of the state after x_q, V_{q+1} (V0)."""
  hidden_BTD = decoder.hidden(
      params['backbone'],
      config,
      rows.token_BT,
      rows.position_BT,
      rows.segment_BT,
      dtype=dtype,
      remat=remat,
  )
  head = params['value_head']
  return hidden_BTD.astype(jnp.float32) @ head['kernel'] + head['bias']


def align(head_BT: jax.Array, position_BT: jax.Array) -> jax.Array:
  """value_BT with V_p at p: the head one position earlier; 0 at position 0."""
  shapes.check_shapes(head_BT=head_BT, position_BT=position_BT)
  return jnp.where(position_BT > 0, jnp.roll(head_BT, 1, axis=1), 0.0)
