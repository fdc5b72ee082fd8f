"""Tensors of a Hugging Face folder and the parameters they hold.

A parameter is stacked over layers, a folder has one tensor per layer; its
matrices are [out, in], ours [in, out] with the heads on axes of their own.
"""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import huggingface_families as families

HEAD = 'lm_head.weight'
EMBEDDING = 'model.embed_tokens.weight'
_BUFFER = '.rotary_emb.inv_freq'
# Names inside `model.layers.N.`, by module of blocks.Block.
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
    'mixture.router': 'mlp.gate',
    'mixture.gate': 'mlp.experts.{expert}.gate_proj',
    'mixture.up': 'mlp.experts.{expert}.up_proj',
    'mixture.down': 'mlp.experts.{expert}.down_proj',
    'mixture.shared.gate': 'mlp.shared_experts.gate_proj',
    'mixture.shared.up': 'mlp.shared_experts.up_proj',
    'mixture.shared.down': 'mlp.shared_experts.down_proj',
}
_GEMMA_NAMES = {
    'attention_post_norm': 'post_attention_layernorm',
    'mlp_norm': 'pre_feedforward_layernorm',
    'mlp_post_norm': 'post_feedforward_layernorm',
}
# Where a family differs.
_FAMILY_NAMES = {
    'gemma2': _GEMMA_NAMES,
    'gemma3_text': _GEMMA_NAMES,
    'glm4': {
        'attention_post_norm': 'post_self_attn_layernorm',
        'mlp_post_norm': 'post_mlp_layernorm',
        'gate': 'mlp.gate_up_proj',
        'up': 'mlp.gate_up_proj',
    },
}
# Parts of a tensor that holds several parameters.
_FUSED = {'glm4': {'gate': (0, 2), 'up': (1, 2)}}
_CHOICE_BIAS = 'mlp.gate.e_score_correction_bias'
_TOP_NAMES = {
    'embed': 'model.embed_tokens',
    'final_norm': 'model.norm',
    'lm_head': 'lm_head',
}


class Piece(NamedTuple):
  """What one tensor of a folder holds of one parameter.

  Attributes:
    name: the tensor's name.
    index: where the piece stands in the parameter: (layer,), (layer, expert)
      or () for all of it.
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
  if keys[0] not in decoder.STACKS:
    return [Piece(f'{_TOP_NAMES[keys[0]]}.weight')]
  family = families.kind_of(config)
  module = '.'.join(keys[1:-1])
  part = _FUSED.get(family, {}).get(module, (0, 1))
  name = _tensor_name(family, module, keys[-1])
  depth = 2 if '{expert}' in name else 1
  first = decoder.stacks(config)[keys[0]][0]
  return [
      Piece(
          f'model.layers.{first + index[0]}.{name.format(expert=index[-1])}',
          index,
          part,
      )
      for index in np.ndindex(shape[:depth])
  ]


def _tensor_name(family: str, module: str, leaf: str) -> str:
  if (module, leaf) == ('mixture.router', 'bias'):
    return _CHOICE_BIAS
  names = _LAYER_NAMES | _FAMILY_NAMES.get(family, {})
  return f'{names[module]}.{"bias" if leaf == "bias" else "weight"}'


def is_ignored(name: str, config: config_lib.DecoderConfig) -> bool:
  """Whether a tensor is no parameter of the decoder and yet may be there.

  Old exports hold the rotary frequencies; GLM-4.5 has further layers behind
  the last one, which predict later tokens.
  """
  if name.endswith(_BUFFER):
    return True
  match = re.match(r'model\.layers\.(\d+)\.', name)
  if families.kind_of(config) != 'glm4_moe' or match is None:
    return False
  return int(match[1]) >= config.num_layers


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
