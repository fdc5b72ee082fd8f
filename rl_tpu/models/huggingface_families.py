"""The families of models: what their config.json says beyond the common.

A family's defaults are those that its reference implementation takes for an
absent field.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from rl_tpu.models import config as config_lib

Data = Mapping[str, Any]

@dataclasses.dataclass(frozen=True)
class Family:
  """One model_type.

  Attributes:
    architecture: the class that loads it.
    fields: what is read beyond the common fields.
    defaults: values of absent fields.
    read: the settings that the family adds, from config.json.
    write: what stands for them in config.json.
    is_local: whether a layer sees a window, where layer_types is absent.
    has_window: layers with a window are allowed.
    has_local_rope: those layers have a rotation of their own.
    has_partial_rotary: a part of a head may stay as it is.
    activation_field: name of the activation.
  """

  architecture: str
  fields: tuple[str, ...] = ()
  defaults: Data = dataclasses.field(default_factory=dict)
  read: Callable[[Data], dict[str, Any]] = lambda data: {}
  write: Callable[[Any], dict[str, Any]] = lambda config: {}
  is_local: Callable[[Data, int], bool] = lambda data, number: False
  has_window: bool = False
  has_local_rope: bool = False
  has_partial_rotary: bool = False
  activation_field: str = 'hidden_act'


def kind_of(config: config_lib.DecoderConfig) -> str:
  """The model_type that has a decoder's settings, if one has."""
  if config.mixture is not None:
    return 'glm4_moe' if config.mixture.router == 'sigmoid' else 'qwen3_moe'
  if config.norm_offset:
    return 'gemma3_text' if config.qk_norm else 'gemma2'
  if config.rotary_interleaved:
    return 'glm4'
  return 'qwen3' if config.qk_norm else 'qwen2' if config.qkv_bias else 'llama'


def _is_local_qwen(data: Data, number: int) -> bool:
  is_on = bool(data.get('use_sliding_window')) and bool(
      data.get('sliding_window')
  )
  return is_on and number >= data['max_window_layers']


def _read_gemma(data: Data) -> dict[str, Any]:
  return {
      'norm_offset': True,
      'post_norms': True,
      'embed_scale': True,
      'query_scalar': data['query_pre_attn_scalar'],
      'attention_softcap': data.get('attn_logit_softcapping'),
      'logit_softcap': data.get('final_logit_softcapping'),
  }


def _write_gemma(config: config_lib.DecoderConfig) -> dict[str, Any]:
  return {
      'query_pre_attn_scalar': config.query_scalar or config.head_width,
      'attn_logit_softcapping': config.attention_softcap,
      'final_logit_softcapping': config.logit_softcap,
  }


def _read_qwen_moe(data: Data) -> dict[str, Any]:
  count = data.get('num_experts') or data['num_local_experts']
  mixture = config_lib.MixtureConfig(
      num_experts=count,
      experts_per_token=data['num_experts_per_tok'],
      expert_width=data['moe_intermediate_size'],
      normalise=data['norm_topk_prob'],
  )
  return {'qk_norm': True, 'mixture': mixture}


def _write_qwen_moe(config: config_lib.DecoderConfig) -> dict[str, Any]:
  return {
      'num_experts': config.mixture.num_experts,
      'num_experts_per_tok': config.mixture.experts_per_token,
      'moe_intermediate_size': config.mixture.expert_width,
      'norm_topk_prob': config.mixture.normalise,
  }


def _read_glm_moe(data: Data) -> dict[str, Any]:
  width = data['moe_intermediate_size']
  mixture = config_lib.MixtureConfig(
      num_experts=data['n_routed_experts'],
      experts_per_token=data['num_experts_per_tok'],
      expert_width=width,
      router='sigmoid',
      num_groups=data['n_group'],
      groups_per_token=data['topk_group'],
      normalise=data['norm_topk_prob'],
      scale=data['routed_scaling_factor'],
      shared_width=width * data['n_shared_experts'],
      leading_dense=data['first_k_dense_replace'],
  )
  return {
      'qkv_bias': bool(data['attention_bias']),
      'qk_norm': bool(data['use_qk_norm']),
      'mixture': mixture,
  }


def _write_glm_moe(config: config_lib.DecoderConfig) -> dict[str, Any]:
  mixture = config.mixture
  return {
      'n_routed_experts': mixture.num_experts,
      'num_experts_per_tok': mixture.experts_per_token,
      'moe_intermediate_size': mixture.expert_width,
      'n_group': mixture.num_groups,
      'topk_group': mixture.groups_per_token,
      'norm_topk_prob': mixture.normalise,
      'routed_scaling_factor': mixture.scale,
      'n_shared_experts': mixture.shared_width // mixture.expert_width,
      'first_k_dense_replace': mixture.leading_dense,
      'attention_bias': config.qkv_bias,
      'use_qk_norm': config.qk_norm,
      # The layers behind the last one that predict further tokens.
      'num_nextn_predict_layers': 0,
  }


_QWEN_WINDOW = dict(
    fields=('sliding_window', 'use_sliding_window', 'max_window_layers'),
    is_local=_is_local_qwen,
    has_window=True,
)
_QWEN_DEFAULTS = {
    'max_position_embeddings': 32768,
    'max_window_layers': 28,
    'num_key_value_heads': 32,
    'sliding_window': 4096,
}
_GEMMA_FIELDS = (
    'hidden_activation',
    'sliding_window',
    'query_pre_attn_scalar',
    'final_logit_softcapping',
)
_GEMMA_DEFAULTS = {
    'head_dim': 256,
    'hidden_activation': 'gelu_pytorch_tanh',
    'num_key_value_heads': 4,
    'query_pre_attn_scalar': 256,
    'sliding_window': 4096,
    'tie_word_embeddings': True,
}
_write_window = lambda config: {
    'use_sliding_window': config.window is not None
}

FAMILIES = {
    'llama': Family(architecture='LlamaForCausalLM'),
    'qwen2': Family(
        architecture='Qwen2ForCausalLM',
        defaults=_QWEN_DEFAULTS,
        read=lambda data: {'qkv_bias': True},
        write=_write_window,
        **_QWEN_WINDOW,
    ),
    'qwen3': Family(
        architecture='Qwen3ForCausalLM',
        defaults={**_QWEN_DEFAULTS, 'head_dim': 128},
        read=lambda data: {'qk_norm': True},
        write=_write_window,
        **_QWEN_WINDOW,
    ),
    'gemma2': Family(
        architecture='Gemma2ForCausalLM',
        fields=(*_GEMMA_FIELDS, 'attn_logit_softcapping'),
        defaults={
            **_GEMMA_DEFAULTS,
            'max_position_embeddings': 8192,
            'attn_logit_softcapping': 50.0,
            'final_logit_softcapping': 30.0,
        },
        read=_read_gemma,
        write=_write_gemma,
        is_local=lambda data, number: number % 2 == 0,
        has_window=True,
        activation_field='hidden_activation',
    ),
    'gemma3_text': Family(
        architecture='Gemma3ForCausalLM',
        fields=(
            *_GEMMA_FIELDS,
            'rope_local_base_freq',
            'sliding_window_pattern',
        ),
        defaults={
            **_GEMMA_DEFAULTS,
            'max_position_embeddings': 131072,
            'rope_theta': 1e6,
            'sliding_window_pattern': 6,
        },
        read=lambda data: {**_read_gemma(data), 'qk_norm': True},
        write=_write_gemma,
        is_local=lambda data, number: bool(
            (number + 1) % data['sliding_window_pattern']
        ),
        has_window=True,
        has_local_rope=True,
        activation_field='hidden_activation',
    ),
    'glm4': Family(
        architecture='Glm4ForCausalLM',
        fields=('attention_bias',),
        defaults={
            'attention_bias': True,
            'head_dim': 128,
            'max_position_embeddings': 131072,
            'num_key_value_heads': 2,
            'partial_rotary_factor': 0.5,
            'rms_norm_eps': 1.5625e-07,
        },
        read=lambda data: {
            'post_norms': True,
            'rotary_interleaved': True,
            'qkv_bias': bool(data['attention_bias']),
        },
        # The family's own pad id would lie outside of a smaller vocabulary.
        write=lambda config: {
            'attention_bias': config.qkv_bias,
            'pad_token_id': None,
        },
        has_partial_rotary=True,
    ),
    'qwen3_moe': Family(
        architecture='Qwen3MoeForCausalLM',
        fields=(
            'num_experts',
            'num_local_experts',
            'num_experts_per_tok',
            'moe_intermediate_size',
            'norm_topk_prob',
        ),
        defaults={
            'max_position_embeddings': 32768,
            'moe_intermediate_size': 768,
            'norm_topk_prob': False,
            'num_experts_per_tok': 8,
            'num_key_value_heads': 4,
            'num_local_experts': 128,
        },
        read=_read_qwen_moe,
        write=_write_qwen_moe,
    ),
    'glm4_moe': Family(
        architecture='Glm4MoeForCausalLM',
        fields=(
            'attention_bias',
            'first_k_dense_replace',
            'moe_intermediate_size',
            'n_group',
            'n_routed_experts',
            'n_shared_experts',
            'norm_topk_prob',
            'num_experts_per_tok',
            'routed_scaling_factor',
            'topk_group',
            'use_qk_norm',
        ),
        defaults={
            'attention_bias': False,
            'first_k_dense_replace': 1,
            'max_position_embeddings': 131072,
            'moe_intermediate_size': 1408,
            'n_group': 1,
            'n_routed_experts': 128,
            'n_shared_experts': 1,
            'norm_topk_prob': True,
            'num_experts_per_tok': 8,
            'num_key_value_heads': 8,
            'partial_rotary_factor': 0.5,
            'rms_norm_eps': 1e-5,
            'routed_scaling_factor': 1.0,
            'topk_group': 1,
            'use_qk_norm': False,
        },
        read=_read_glm_moe,
        write=_write_glm_moe,
        has_partial_rotary=True,
    ),
}
