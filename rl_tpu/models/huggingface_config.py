"""config.json of the Llama and Qwen kinds, to and from DecoderConfig."""

from collections.abc import Mapping
import pathlib
from typing import Any

from rl_tpu.models import config as config_lib

_ACTIVATIONS = {
    'silu': 'silu',
    'relu': 'relu',
    'gelu_pytorch_tanh': 'gelu_tanh',
}
_ARCHITECTURES = {
    'llama': 'LlamaForCausalLM',
    'qwen2': 'Qwen2ForCausalLM',
    'qwen3': 'Qwen3ForCausalLM',
}
# Fields that change the mathematics, with the values that leave it as it is.
_NEUTRAL = {
    'mlp_bias': (False, None),
    'attention_bias': (False, None),
    'use_sliding_window': (False, None),
    'partial_rotary_factor': (1.0, None),
    'quantization_config': (None,),
    'attn_logit_softcapping': (None,),
    'final_logit_softcapping': (None,),
}
_LLAMA3_FIELDS = (
    'factor',
    'low_freq_factor',
    'high_freq_factor',
    'original_max_position_embeddings',
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
  if kind not in _ARCHITECTURES:
    raise ValueError(
        f'{path}: model_type = {kind!r} is not supported; use one of'
        f' {sorted(_ARCHITECTURES)}.'
    )
  _check_neutral(data, path)
  activation = data.get('hidden_act', 'silu')
  if activation not in _ACTIVATIONS:
    raise ValueError(
        f'{path}: hidden_act = {activation!r} is not supported; use one of'
        f' {sorted(_ACTIVATIONS)}.'
    )
  heads = _field(data, 'num_attention_heads', path)
  width = _field(data, 'hidden_size', path)
  try:
    return config_lib.DecoderConfig(
        vocab_size=_field(data, 'vocab_size', path),
        width=width,
        num_layers=_field(data, 'num_hidden_layers', path),
        num_heads=heads,
        num_kv_heads=data.get('num_key_value_heads') or heads,
        head_width=data.get('head_dim') or width // heads,
        mlp_width=_field(data, 'intermediate_size', path),
        activation=_ACTIVATIONS[activation],
        norm_eps=data.get('rms_norm_eps', 1e-6),
        qk_norm=kind == 'qwen3',
        qkv_bias=kind == 'qwen2',
        tie_embeddings=bool(data.get('tie_word_embeddings', False)),
        max_length=data.get('max_position_embeddings', 2048),
        **_rope(data, path),
    )
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _field(data: Mapping[str, Any], name: str, path) -> int:
  value = data.get(name)
  if not isinstance(value, int) or isinstance(value, bool):
    raise ValueError(f'{path}: {name} must be a whole number, got {value!r}.')
  return value


def _check_neutral(data: Mapping[str, Any], path) -> None:
  for name, values in _NEUTRAL.items():
    if data.get(name) not in values:
      raise ValueError(
          f'{path}: {name} = {data[name]!r} is not supported; the decoder'
          f' covers {values[0]!r} only.'
      )
  kinds = set(data.get('layer_types') or ()) - {'full_attention'}
  if kinds:
    raise ValueError(
        f'{path}: layer_types with {sorted(kinds)} is not supported; the'
        ' decoder covers full_attention only.'
    )


def _rope(data: Mapping[str, Any], path) -> dict[str, Any]:
  """Base and scaling, from the old fields or from `rope_parameters` (K41)."""
  newer = data.get('rope_parameters') or {}
  scaling = data.get('rope_scaling') or newer
  theta = newer.get('rope_theta', data.get('rope_theta', 1e4))
  kind = config_lib.rope_kind(scaling)
  if kind == 'default':
    return {'rope_theta': theta, 'rope_scaling': None}
  if kind not in config_lib.ROPE_KINDS:
    raise ValueError(
        f'{path}: rope_scaling of kind {kind!r} is not supported; use one of'
        f' {config_lib.ROPE_KINDS}.'
    )
  missing = [name for name in _LLAMA3_FIELDS if name not in scaling]
  if missing:
    raise ValueError(f'{path}: rope_scaling lacks {missing}.')
  kept = {name: scaling[name] for name in _LLAMA3_FIELDS}
  return {'rope_theta': theta, 'rope_scaling': {'rope_type': kind, **kept}}


def render(config: config_lib.DecoderConfig) -> dict[str, Any]:
  """The content of config.json for a decoder.

  Raises:
    ValueError: a combination that no supported model_type has.
  """
  if config.qk_norm and config.qkv_bias:
    raise ValueError(
        'model: qk_norm together with qkv_bias has no Hugging Face model_type;'
        ' turn one of them off to export.'
    )
  kind = 'qwen3' if config.qk_norm else 'qwen2' if config.qkv_bias else 'llama'
  activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  return {
      'architectures': [_ARCHITECTURES[kind]],
      'model_type': kind,
      'vocab_size': config.vocab_size,
      'hidden_size': config.width,
      'intermediate_size': config.mlp_width,
      'num_hidden_layers': config.num_layers,
      'num_attention_heads': config.num_heads,
      'num_key_value_heads': config.num_kv_heads,
      'head_dim': config.head_width,
      'hidden_act': activations[config.activation],
      'max_position_embeddings': config.max_length,
      'rms_norm_eps': config.norm_eps,
      'rope_theta': config.rope_theta,
      'rope_scaling': dict(config.rope_scaling or {}) or None,
      'attention_bias': False,
      'mlp_bias': False,
      'tie_word_embeddings': config.tie_embeddings,
      'torch_dtype': 'float32',
  }
