"""config.json of the supported families, to and from DecoderConfig.

What a file says is read, known to change nothing, or refused by its name.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from rl_tpu.models import config as config_lib
from rl_tpu.models import huggingface_families as families
from rl_tpu.models import huggingface_fields
from rl_tpu.models import huggingface_rope
from rl_tpu.text import json_files

# Read for every family.
_COMMON = (
    'model_type',
    'vocab_size',
    'hidden_size',
    'intermediate_size',
    'num_hidden_layers',
    'num_attention_heads',
    'num_key_value_heads',
    'head_dim',
    'hidden_act',
    'max_position_embeddings',
    'rms_norm_eps',
    'tie_word_embeddings',
    'rope_theta',
    'rope_scaling',
    'rope_parameters',
    'partial_rotary_factor',
    'layer_types',
)
# They change no number that the decoder gives.
_HARMLESS = frozenset((
    'architectures',
    'bos_token_id',
    'cache_implementation',
    'dtype',
    'eos_token_id',
    'initializer_range',
    'is_llama_config',
    'max_window_layers',
    'name_or_path',
    'num_mtp_layers',
    'num_nextn_predict_layers',
    'output_router_logits',
    'pad_token_id',
    'pretraining_tp',
    'router_aux_loss_coef',
    'sliding_window',
    'sliding_window_size',
    'torch_dtype',
    'transformers.js_config',
    'transformers_version',
    'unsloth_version',
    'use_cache',
))
# They change numbers, unless they have one of these values.
_NEUTRAL = {
    'attention_bias': (False,),
    'attention_dropout': (0,),
    'attn_logit_softcapping': (),
    'decoder_sparse_step': (1,),
    'final_logit_softcapping': (),
    'mlp_bias': (False,),
    'mlp_only_layers': ([],),
    'quantization_config': (),
    'rope_interleaved': (False,),
    'use_bidirectional_attention': (False,),
    'use_mrope': (False,),
    'use_sliding_window': (False,),
}

_ACTIVATIONS = {
    'silu': 'silu',
    'relu': 'relu',
    'gelu_pytorch_tanh': 'gelu_tanh',
}
# Two names of one thing.
_SAME = (
    ('hidden_activation', 'hidden_act'),
    ('num_experts', 'num_local_experts'),
)


def parse(
    data: Mapping[str, Any], path: str | pathlib.Path
) -> config_lib.DecoderConfig:
  """Settings of a decoder from a config.json.

  Args:
    data: its content.
    path: where it is from, for messages.

  Raises:
    ValueError: a missing field, or one that the decoder does not cover.
  """
  kind = data.get('model_type')
  if not isinstance(kind, str) or kind not in families.FAMILIES:
    raise ValueError(
        f'{path}: model_type = {json_files.shown(kind)} is not supported; use'
        f' one of {sorted(families.FAMILIES)}.'
    )
  try:
    return _parse(data, families.FAMILIES[kind])
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _parse(data, family: families.Family) -> config_lib.DecoderConfig:
  _check_fields(data, family)
  data = {**family.defaults, **data}
  heads = _needed(data, 'num_attention_heads')
  width = _needed(data, 'hidden_size')
  settings = dict(
      vocab_size=_needed(data, 'vocab_size'),
      width=width,
      num_layers=_needed(data, 'num_hidden_layers'),
      num_heads=heads,
      num_kv_heads=data.get('num_key_value_heads') or heads,
      head_width=data.get('head_dim') or _head_width(width, heads),
      mlp_width=_needed(data, 'intermediate_size'),
      activation=_activation(data, family),
      norm_eps=data.get('rms_norm_eps', 1e-6),
      tie_embeddings=data.get('tie_word_embeddings', False),
      max_length=data.get('max_position_embeddings', 2048),
  )
  settings |= family.read(data)
  mixture = settings.get('mixture')
  if mixture is not None:
    huggingface_fields.check_count(settings['num_layers'], mixture.num_experts)
  settings |= _layers(data, family)
  settings |= huggingface_rope.read(data, family, settings['head_width'])
  return config_lib.DecoderConfig(**settings)


def _check_fields(data, family: families.Family) -> None:
  """Refuses what is not understood and says something."""
  known = (*_COMMON, *family.fields)
  huggingface_fields.check(data, known, defaults=family.defaults)
  for left, right in _SAME:
    found = [data[name] for name in (left, right) if name in data]
    if len(found) == 2 and found[0] != found[1]:
      raise ValueError(
          f'{left} = {json_files.shown(found[0])} and {right} ='
          f' {json_files.shown(found[1])} disagree; take one of them out.'
      )
  for name, value in data.items():
    if name in known or value is None or name.startswith('_'):
      continue
    if name in _NEUTRAL:
      if value in _NEUTRAL[name]:
        continue
      raise ValueError(
          f'{name} = {json_files.shown(value)} is not supported; the decoder'
          f' covers {(*_NEUTRAL[name], None)} of it in this model_type.'
      )
    if name not in _HARMLESS:
      raise ValueError(
          f'{name} = {json_files.shown(value)} is not understood; take it out'
          ' of the file if it changes nothing in the model.'
      )


def _needed(data: Mapping[str, Any], name: str) -> int:
  if data.get(name) is None:
    raise ValueError(f'{name} is missing; the decoder has no size without it.')
  return data[name]


def _head_width(width: int, heads: int) -> int:
  if width % heads:
    raise ValueError(
        f'hidden_size = {width} is no multiple of num_attention_heads ='
        f' {heads}, and head_dim is not given.'
    )
  return width // heads


def _activation(data, family: families.Family) -> str:
  """By the family's own field, as transformers 5 reads it."""
  name = family.activation_field
  found = data.get(name, 'silu')
  if found not in _ACTIVATIONS:
    raise ValueError(
        f'{name} = {json_files.shown(found)} is not supported; use one of'
        f' {sorted(_ACTIVATIONS)}.'
    )
  return _ACTIVATIONS[found]


def _layers(data, family: families.Family) -> dict[str, Any]:
  """Which layers see a window, from their list or by the family's rule."""
  count = data['num_hidden_layers']
  kinds = data.get('layer_types')
  if kinds is None:
    is_local = [family.is_local(data, number) for number in range(count)]
  else:
    _check_layer_types(data, family, kinds)
    is_local = [kind == 'sliding_attention' for kind in kinds]
  local = tuple(number for number in range(count) if is_local[number])
  return {
      'local_layers': local,
      'window': _needed(data, 'sliding_window') if local else None,
  }


def _check_layer_types(data, family: families.Family, kinds) -> None:
  layer_kinds = huggingface_rope.LAYER_KINDS
  covered = layer_kinds if family.has_window else layer_kinds[:1]
  count, unknown = data['num_hidden_layers'], sorted(set(kinds) - set(covered))
  if unknown or len(kinds) != count:
    raise ValueError(
        f'layer_types with {json_files.shown(unknown or len(kinds))} is not'
        f' supported; give each of the {count} layers one of {covered}.'
    )
  has_switch = 'use_sliding_window' in family.fields
  is_off = has_switch and not data.get('use_sliding_window', False)
  if is_off and 'sliding_attention' in kinds:
    raise ValueError(
        'layer_types names sliding_attention and use_sliding_window is false;'
        ' they must agree.'
    )


def render(config: config_lib.DecoderConfig) -> dict[str, Any]:
  """The content of config.json for a decoder.

  Raises:
    ValueError: a combination that no supported model_type has.
  """
  kind = families.kind_of(config)
  family = families.FAMILIES[kind]
  activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  out = {
      'architectures': [family.architecture],
      'model_type': kind,
      'vocab_size': config.vocab_size,
      'hidden_size': config.width,
      'intermediate_size': config.mlp_width,
      'num_hidden_layers': config.num_layers,
      'num_attention_heads': config.num_heads,
      'num_key_value_heads': config.num_kv_heads,
      'head_dim': config.head_width,
      family.activation_field: activations[config.activation],
      'max_position_embeddings': config.max_length,
      'rms_norm_eps': config.norm_eps,
      'tie_word_embeddings': config.tie_embeddings,
      'torch_dtype': 'float32',
      **huggingface_rope.render(config, family),
      **family.write(config),
  }
  if family.has_window:
    out['sliding_window'] = config.window
    out['layer_types'] = [
        huggingface_rope.LAYER_KINDS[number in config.local_layers]
        for number in range(config.num_layers)
    ]
  _check_same(config, parse(out, 'config.json'), kind)
  return out


def _check_same(config, written, kind: str) -> None:
  """Refuses settings that the model_type does not have."""
  config = dataclasses.replace(config, usable_vocab=None)
  lost = [
      f'{field.name} = {getattr(config, field.name)!r}'
      for field in dataclasses.fields(config)
      if getattr(config, field.name) != getattr(written, field.name)
  ]
  if lost:
    raise ValueError(
        f'model: {", ".join(lost)} has no place in model_type {kind!r}, the'
        ' Hugging Face family of the other settings; change it to export.'
    )
