"""config.json of the supported families, to and from DecoderConfig.

What a file says is read, known to change nothing, or refused by its name.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from rl_tpu.models import config as config_lib
from rl_tpu.models import huggingface_families as families

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

# What the fields that are read may hold besides null, and its name.
_NUMBER = (int, float), 'a number'
_KINDS = {
    'head_dim': (int, 'a whole number'),
    'layer_types': (list, 'a list'),
    'max_position_embeddings': (int, 'a whole number'),
    'num_key_value_heads': (int, 'a whole number'),
    'partial_rotary_factor': _NUMBER,
    'rms_norm_eps': _NUMBER,
    'rope_local_base_freq': _NUMBER,
    'rope_parameters': (Mapping, 'an object'),
    'rope_scaling': (Mapping, 'an object'),
    'rope_theta': _NUMBER,
}

_ACTIVATIONS = {
    'silu': 'silu',
    'relu': 'relu',
    'gelu_pytorch_tanh': 'gelu_tanh',
}
_ROPE_FIELDS = {
    'default': (),
    'linear': ('factor',),
    'llama3': (
        'factor',
        'low_freq_factor',
        'high_freq_factor',
        'original_max_position_embeddings',
    ),
}
_ROPE_NAMES = ('rope_type', 'type', 'rope_theta', 'partial_rotary_factor')
_LAYER_KINDS = ('full_attention', 'sliding_attention')


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
  if kind not in families.FAMILIES:
    raise ValueError(
        f'{path}: model_type = {kind!r} is not supported; use one of'
        f' {sorted(families.FAMILIES)}.'
    )
  try:
    return _parse(data, families.FAMILIES[kind])
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _parse(data, family: families.Family) -> config_lib.DecoderConfig:
  _check_fields(data, family)
  data = {**family.defaults, **data}
  activation = data.get('hidden_activation') or data.get('hidden_act', 'silu')
  if activation not in _ACTIVATIONS:
    raise ValueError(
        f'hidden_act = {activation!r} is not supported; use one of'
        f' {sorted(_ACTIVATIONS)}.'
    )
  heads = _field(data, 'num_attention_heads')
  width = _field(data, 'hidden_size')
  settings = dict(
      vocab_size=_field(data, 'vocab_size'),
      width=width,
      num_layers=_field(data, 'num_hidden_layers'),
      num_heads=heads,
      num_kv_heads=data.get('num_key_value_heads') or heads,
      head_width=data.get('head_dim') or width // heads,
      mlp_width=_field(data, 'intermediate_size'),
      activation=_ACTIVATIONS[activation],
      norm_eps=data.get('rms_norm_eps', 1e-6),
      tie_embeddings=bool(data.get('tie_word_embeddings', False)),
      max_length=data.get('max_position_embeddings', 2048),
  )
  settings |= family.read(data)
  settings |= _layers(data, family)
  settings |= _rope(data, family, settings['head_width'])
  return config_lib.DecoderConfig(**settings)


def _check_fields(data, family: families.Family) -> None:
  """Refuses what is not understood and says something (None says nothing)."""
  known = {*_COMMON, *family.fields}
  for name, (kind, shown) in _KINDS.items():
    value = data.get(name)
    is_it = isinstance(value, kind) and not isinstance(value, bool)
    if value is not None and not is_it:
      raise ValueError(f'{name} must be {shown}, got {value!r}.')
  for name, value in data.items():
    if name in known or value is None or name.startswith('_'):
      continue
    if name in _NEUTRAL:
      if value in _NEUTRAL[name]:
        continue
      raise ValueError(
          f'{name} = {value!r} is not supported; the decoder covers'
          f' {(*_NEUTRAL[name], None)} of it in this model_type.'
      )
    if name not in _HARMLESS:
      raise ValueError(
          f'{name} = {value!r} is not understood; take it out of the file if'
          ' it changes nothing in the model.'
      )


def _field(data: Mapping[str, Any], name: str) -> int:
  value = data.get(name)
  if not isinstance(value, int) or isinstance(value, bool):
    raise ValueError(f'{name} must be a whole number, got {value!r}.')
  return value


def _layers(data, family: families.Family) -> dict[str, Any]:
  """Which layers see a window, from their list or by the family's rule."""
  count = _field(data, 'num_hidden_layers')
  kinds = data.get('layer_types')
  if kinds is None:
    is_local = [family.is_local(data, number) for number in range(count)]
  else:
    covered = _LAYER_KINDS if family.has_window else _LAYER_KINDS[:1]
    unknown = sorted(set(kinds) - set(covered))
    if unknown or len(kinds) != count:
      raise ValueError(
          f'layer_types with {unknown or len(kinds)} is not supported; give'
          f' each of the {count} layers one of {covered}.'
      )
    is_local = [kind == 'sliding_attention' for kind in kinds]
  local = tuple(number for number in range(count) if is_local[number])
  return {
      'local_layers': local,
      'window': _field(data, 'sliding_window') if local else None,
  }


def _rope(data, family: families.Family, head_width: int) -> dict[str, Any]:
  """Bases and scaling, from the old fields or `rope_parameters` (K41)."""
  newer = data.get('rope_parameters') or {}
  local = {}
  if family.has_local_rope and set(newer) <= set(_LAYER_KINDS):
    local = newer.get('sliding_attention') or {}
    newer = newer.get('full_attention') or {}
  scaling = data.get('rope_scaling') or newer
  if config_lib.rope_kind(local) != 'default':
    raise ValueError(
        f'rope_parameters of sliding_attention = {local} is not supported; only'
        ' the layers with full attention may be scaled.'
    )
  share = newer.get('partial_rotary_factor', data.get('partial_rotary_factor'))
  rotary_width = int(head_width * (share or 1.0))
  out = {
      'rope_theta': newer.get('rope_theta', data.get('rope_theta', 1e4)),
      'rope_scaling': _scaling(scaling),
      'rotary_width': None if rotary_width == head_width else rotary_width,
  }
  if out['rotary_width'] and not family.has_partial_rotary:
    raise ValueError(
        f'partial_rotary_factor = {share} is not supported in this model_type.'
    )
  if family.has_local_rope:
    old = data.get('rope_local_base_freq', 1e4)
    out['local_rope_theta'] = local.get('rope_theta', old)
  return out


def _scaling(scaling: Mapping[str, Any]) -> dict[str, Any] | None:
  kind = config_lib.rope_kind(scaling)
  if kind not in _ROPE_FIELDS:
    raise ValueError(
        f'rope_scaling of kind {kind!r} is not supported; use one of'
        f' {config_lib.ROPE_KINDS}.'
    )
  names = _ROPE_FIELDS[kind]
  missing = [name for name in names if name not in scaling]
  if missing:
    raise ValueError(f'rope_scaling lacks {missing}.')
  surplus = [
      name
      for name, value in scaling.items()
      if name not in (*names, *_ROPE_NAMES) and value is not None
  ]
  if surplus:
    raise ValueError(
        f'rope_scaling holds {surplus}, which kind {kind!r} does not read.'
    )
  if kind == 'default':
    return None
  return {'rope_type': kind, **{name: scaling[name] for name in names}}


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
      **_render_rope(config, family),
      **family.write(config),
  }
  if family.has_window:
    out['sliding_window'] = config.window
    out['layer_types'] = [
        _LAYER_KINDS[number in config.local_layers]
        for number in range(config.num_layers)
    ]
  _check_same(config, parse(out, 'config.json'), kind)
  return out


def _render_rope(config, family) -> dict[str, Any]:
  """The fields of older readers, and `rope_parameters` of newer ones."""
  scaling = dict(config.rope_scaling or {})
  partial = {}
  if family.has_partial_rotary:
    rotated = config.rotary_width or config.head_width
    partial = {'partial_rotary_factor': rotated / config.head_width}
  newer = {
      'rope_type': config_lib.rope_kind(scaling),
      'rope_theta': config.rope_theta,
      **scaling,
      **partial,
  }
  older = {
      'rope_theta': config.rope_theta,
      'rope_scaling': scaling or None,
      **partial,
  }
  if not family.has_local_rope:
    return {**older, 'rope_parameters': newer}
  theta = config.local_rope_theta
  local = {'rope_type': 'default', 'rope_theta': theta}
  nested = {'full_attention': newer, 'sliding_attention': local}
  return {**older, 'rope_local_base_freq': theta, 'rope_parameters': nested}


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
