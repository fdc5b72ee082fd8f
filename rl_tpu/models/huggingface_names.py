"""Tensors of a Hugging Face folder and the parameters they hold.

A parameter is stacked over layers, a folder has one tensor per layer; its
matrices are [out, in], ours [in, out] with the heads on axes of their own.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from rl_tpu.models import config as config_lib

HEAD = 'lm_head.weight'
EMBEDDING = 'model.embed_tokens.weight'
BUFFER = '.rotary_emb.inv_freq'  # Old exports hold it; it is no parameter.
STACKS = ('layers',)

# Names inside `model.layers.N.`, by module of decoder.Block.
_LAYER_NAMES = {
    'attention_norm': 'input_layernorm',
    'query': 'self_attn.q_proj',
    'key': 'self_attn.k_proj',
    'value': 'self_attn.v_proj',
    'query_norm': 'self_attn.q_norm',
    'key_norm': 'self_attn.k_norm',
    'out': 'self_attn.o_proj',
    'mlp_norm': 'post_attention_layernorm',
    'gate': 'mlp.gate_proj',
    'up': 'mlp.up_proj',
    'down': 'mlp.down_proj',
}
_TOP_NAMES = {
    'embed': 'model.embed_tokens',
    'final_norm': 'model.norm',
    'lm_head': 'lm_head',
}


class Piece(NamedTuple):
  """What one tensor of a folder holds of one parameter.

  Attributes:
    name: the tensor's name.
    index: where the piece stands in the parameter: (layer,), or () for all
      of it.
    part: which of how many equal parts of the tensor's axis 0 it is: (0, 1)
      is the whole tensor.
  """

  name: str
  index: tuple[int, ...] = ()
  part: tuple[int, int] = (0, 1)


def keys_of(path: Any) -> tuple[str, ...]:
  """A parameter's keys from its path in the tree."""
  return tuple(entry.key for entry in path)


def pieces(
    keys: tuple[str, ...],
    shape: tuple[int, ...],
    config: config_lib.DecoderConfig,
) -> list[Piece]:
  """The pieces of a parameter, in the order of their places in it.

  Args:
    keys: the parameter's keys.
    shape: its shape.
    config: the decoder's settings.
  """
  del config  # Every kind that is covered has the same names.
  kind = 'bias' if keys[-1] == 'bias' else 'weight'
  if keys[0] not in STACKS:
    return [Piece(f'{_TOP_NAMES[keys[0]]}.{kind}')]
  name = _LAYER_NAMES[keys[1]]
  return [
      Piece(f'model.layers.{layer}.{name}.{kind}', (layer,))
      for layer in range(shape[0])
  ]


def file_axes(keys: tuple[str, ...], ndim: int) -> list[tuple[int, ...]]:
  """The axes of a piece that make up each axis of its tensor, outermost first.

  Args:
    keys: the parameter's keys.
    ndim: axes of the piece.
  """
  every = tuple(range(ndim))
  if keys[-1] == 'embedding':
    return [(axis,) for axis in every]
  if keys[-1] != 'kernel':
    return [every]
  # [H, K, D] reads heads, the others the stream.
  inputs = 2 if keys[-2] == 'out' else 1
  return [every[inputs:], every[:inputs]]


def file_shape(
    keys: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
  """Shape in the file of a piece of shape `shape`."""
  return tuple(
      math.prod(shape[axis] for axis in axes)
      for axes in file_axes(keys, len(shape))
  )


def to_file(keys: tuple[str, ...], array: np.ndarray) -> np.ndarray:
  """A piece of a parameter as the file has it: matrices are [out, in]."""
  order = [axis for axes in file_axes(keys, array.ndim) for axis in axes]
  return array.transpose(order).reshape(file_shape(keys, array.shape))
