"""The one decoder: pre-norm blocks of attention and a gated feed-forward.

Everybody else sees pure functions over a nested dict of float32 arrays, in
which the layers are stacked on a leading axis L.
"""

import functools
import math
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import attend
from rl_tpu.models import attention
from rl_tpu.models import blocks
from rl_tpu.models import config as config_lib
from rl_tpu.models import execution as execution_lib
from rl_tpu.models import mixture
from rl_tpu.models import rotary
from rl_tpu.types import shapes

Params = dict[str, Any]
# Kept for the backward pass beside a layer's input, by `Execution.remat`.
SAVED = {
    'none': ('heads', 'middle', 'mlp', *attention.SAVED),
    'attention': attention.SAVED,
    'layer': (),
}
# A mixture's leading layers without experts are a stack of their own.
STACKS = ('dense_layers', 'layers')


class Embedding(nnx.Module):
  """Token table."""

  def __init__(self, config: config_lib.DecoderConfig, rngs: nnx.Rngs):
    std = 1.0 / math.sqrt(config.width)
    shape = (config.vocab_size, config.width)
    value = std * jax.random.normal(rngs.params(), shape, jnp.float32)
    self.embedding = nnx.Param(value, axes=('vocab', 'width'))


class Decoder(nnx.Module):
  """Embedding, stacked layers, final norm and, unless tied, the head."""

  def __init__(self, config: config_lib.DecoderConfig, rngs: nnx.Rngs):
    self.embed = Embedding(config, rngs)
    for name, numbers in stacks(config).items():
      setattr(self, name, _stack(config, name, len(numbers), rngs))
    self.final_norm = blocks.Norm(config.width, 'width', config)
    if not config.tie_embeddings:
      shape = config.width, config.vocab_size
      self.lm_head = blocks.Dense(
          config, 'lm_head', ('width', 'vocab'), shape, rngs
      )


def _stack(config, name: str, count: int, rngs: nnx.Rngs) -> blocks.Block:
  is_sparse = is_mixture(config, name)
  make = lambda rngs: blocks.Block(config, rngs, is_sparse=is_sparse)
  return nnx.split_rngs(splits=count)(nnx.vmap(make))(rngs)


def is_mixture(config: config_lib.DecoderConfig, stack: str) -> bool:
  """Whether the layers of a stack have experts."""
  return config.mixture is not None and stack == 'layers'


def stacks(config: config_lib.DecoderConfig) -> dict[str, range]:
  """Stacks of layers in their order, with the numbers of their layers."""
  dense = config.mixture.leading_dense if config.mixture else 0
  numbers = {
      'dense_layers': range(dense),
      'layers': range(dense, config.num_layers),
  }
  return {name: each for name, each in numbers.items() if each}


def backbone(tree: Params) -> Params:
  """The parameters that give the hidden states: all but the output layer."""
  names = ('embed', *STACKS, 'final_norm')
  return {name: tree[name] for name in names if name in tree}


def init_params(config: config_lib.DecoderConfig, key: jax.Array) -> Params:
  """New parameters: normal, scaled by fan-in."""
  module = Decoder(config, nnx.Rngs(params=key))
  return nnx.to_pure_dict(nnx.state(module, nnx.Param))


@functools.lru_cache(maxsize=32)
def _abstract(config: config_lib.DecoderConfig) -> tuple[Any, Any]:
  """Structure and abstract state of the decoder's modules."""
  module = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(params=0)))
  return nnx.split(module, nnx.Param)


@functools.lru_cache(maxsize=32)
def _block(
    config: config_lib.DecoderConfig, is_sparse: bool
) -> tuple[Any, Any]:
  """Structure of one layer, to merge with its parameters, and its state."""
  module = nnx.eval_shape(
      lambda: blocks.Block(config, nnx.Rngs(params=0), is_sparse=is_sparse)
  )
  return nnx.split(module, nnx.Param)


def _axes_of(state: Any) -> Params:
  """Names of the dimensions that the modules gave their parameters."""
  is_leaf = lambda x: isinstance(x, nnx.Variable)
  axes = jax.tree.map(
      lambda p: p.get_metadata()['axes'], state, is_leaf=is_leaf
  )
  return nnx.to_pure_dict(axes)


def logical_axes(config: config_lib.DecoderConfig) -> Params:
  """Names of every parameter's dimensions, for `sharding.rules`."""
  axes = _axes_of(_abstract(config)[1])
  for name in stacks(config):
    axes[name] = jax.tree.map(
        lambda names: ('layer', *names),
        axes[name],
        is_leaf=lambda x: isinstance(x, tuple),
    )
  return axes


def shapes_of(config: config_lib.DecoderConfig) -> Params:
  """Shape and dtype of every parameter, nothing allocated."""
  return nnx.to_pure_dict(_abstract(config)[1])


def embed(
    params: Params,
    config: config_lib.DecoderConfig,
    token_T: jax.Array,
    execution: execution_lib.Execution,
) -> jax.Array:
  """Rows of the token table as the first layer reads them, [T, D]."""
  table_VD = params['embed']['embedding'].astype(execution.dtype)
  return scale_embedding(execution.look_up(table_VD, token_T), config)


def scale_embedding(
    rows: jax.Array, config: config_lib.DecoderConfig
) -> jax.Array:
  """Embeddings as the first layer reads them; the scale in their dtype."""
  if not config.embed_scale:
    return rows
  return rows * jnp.asarray(math.sqrt(config.width), rows.dtype)


def final_norm(
    params: Params, config: config_lib.DecoderConfig, x: jax.Array
) -> jax.Array:
  """The norm that the output layer and the value head read."""
  graph = _norm_graph(config)
  return nnx.merge(graph, params['final_norm'])(x)


@functools.lru_cache(maxsize=32)
def _norm_graph(config: config_lib.DecoderConfig) -> Any:
  module = nnx.eval_shape(lambda: blocks.Norm(config.width, 'width', config))
  return nnx.split(module, nnx.Param)[0]


def hidden(
    params: Params,
    config: config_lib.DecoderConfig,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    *,
    execution: execution_lib.Execution = execution_lib.Execution(),
) -> jax.Array:
  """Normed hidden state of every position.

  Args:
    params: the decoder's parameters; an output layer in them is not read.
    config: the decoder's settings.
    token_BT: token ids, valid ids in padding too.
    position_BT: position inside the segment.
    segment_BT: segment id, -1 in padding; attention stays inside one id (P1).
    execution: dtype of the activations, what is recomputed, where it runs.

  Returns:
    hidden_BTD in its dtype: at q it has read x_0..x_q of its segment.
  """
  return _hidden(
      params, config, token_BT, position_BT, segment_BT, execution, False
  )[0]


def hidden_and_load(
    params: Params,
    config: config_lib.DecoderConfig,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    *,
    execution: execution_lib.Execution = execution_lib.Execution(),
) -> tuple[jax.Array, jax.Array | None]:
  """`hidden`, and the load of the experts.

  Returns:
    hidden_BTD, and int32 load_LE: the real tokens that took each expert, by
    layer that has some; None for a decoder without.
  """
  return _hidden(
      params, config, token_BT, position_BT, segment_BT, execution, True
  )


def _hidden(
    params, config, token_BT, position_BT, segment_BT, execution, has_load
):
  shapes.check_shapes(
      token_BT=token_BT, position_BT=position_BT, segment_BT=segment_BT
  )
  # Matrices see one axis of tokens (B times T): with two, the compiler would
  # transpose wide arrays for their gradients.
  x_TD = embed(params, config, token_BT.reshape(-1), execution)
  load_LE = None
  for name, numbers in stacks(config).items():
    layer, kind_L = _layer(
        config, name, numbers, position_BT, segment_BT, execution, has_load
    )
    policy = jax.checkpoint_policies.save_only_these_names(
        *SAVED[execution.remat]
    )
    layer = jax.checkpoint(layer, prevent_cse=False, policy=policy)
    # The layers of experts are the last stack.
    x_TD, load_LE = jax.lax.scan(layer, x_TD, (params[name], kind_L))
  B, T = token_BT.shape
  x_TD = execution.whole_rows(final_norm(params, config, x_TD))
  return x_TD.reshape(B, T, -1), load_LE


def _layer(
    config, name, numbers, position_BT, segment_BT, execution, has_load
):
  """A layer as a scan's body, and its kind of each layer as the input."""
  B, T = segment_BT.shape
  graph, state = _block(config, is_mixture(config, name))
  axes = _axes_of(state)
  angles, windows, kind_L = _kinds(config, numbers, position_BT)

  def layer(x_TD, inputs):
    layer_params, kind = inputs
    layer_params = execution.gather_weights(layer_params, axes)
    block = nnx.merge(graph, layer_params)
    cos, sin = (x if kind is None else x[kind] for x in angles)
    query, key, value = block.project(x_TD, cos, sin, execution)
    split = lambda x: x.reshape(B, T, *x.shape[1:])
    attended = attend.attend(
        split(query),
        split(key),
        split(value),
        segment_BT,
        config=config,
        execution=execution,
        windows=windows,
        kind=kind,
    )
    x_TD, expert_TM = block.merge(
        x_TD, attended.reshape(query.shape), execution
    )
    if expert_TM is None or not has_load:
      return x_TD, None
    is_real_T = segment_BT.reshape(-1) >= 0
    return x_TD, mixture.load(
        expert_TM, is_real_T, config.mixture.num_experts
    )

  return layer, kind_L


def _kinds(config, numbers, position_BT):
  """Angles and windows by kind of layer, and the kind of each layer.

  Where all are of one kind its angles are no stack of two, and there is
  nothing to choose.
  """
  is_local = np.isin(numbers, config.local_layers)
  turn = lambda local: rotary.angles(
      position_BT.reshape(-1), config, local=local
  )
  if not is_local.any():
    return turn(False), (None,), None
  if is_local.all():
    return turn(True), (config.window,), None
  angles = tuple(map(jnp.stack, zip(turn(False), turn(True))))
  return angles, (None, config.window), jnp.asarray(is_local, jnp.int32)
