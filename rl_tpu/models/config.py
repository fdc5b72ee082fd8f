"""Shape and kind of a decoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_tpu.models import lora as lora_lib

ACTIVATIONS = ('silu', 'relu', 'gelu_tanh')
ROPE_KINDS = ('default', 'llama3')


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Settings of the one decoder, which cover the Llama and Qwen kinds.

  Attributes:
    vocab_size: rows of the embedding and of the output layer.
    width: size of the residual stream, D.
    num_layers: L.
    num_heads: query heads.
    num_kv_heads: key and value heads; divides `num_heads`.
    head_width: size of one head, K; even.
    mlp_width: hidden size of the gated feed-forward layer, F.
    activation: silu, relu or gelu_tanh, applied to the gate.
    norm_eps: added to the mean square of an RMSNorm.
    rope_theta: base of the rotary frequencies.
    rope_scaling: None, or the mapping of a Hugging Face config: kind llama3.
    qk_norm: RMSNorm over each query and key head, before the rotation.
    qkv_bias: biases on query, key and value.
    tie_embeddings: the output layer is the embedding.
    lora: low-rank adapters beside the matrices, or None.
    max_length: positions the model was made for.
    usable_vocab: output rows from this one on have no token and get
      probability 0 (K22); None uses all rows.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  mlp_width: int
  activation: str = 'silu'
  norm_eps: float = 1e-6
  rope_theta: float = 1e4
  rope_scaling: Mapping[str, Any] | None = None
  qk_norm: bool = False
  qkv_bias: bool = False
  tie_embeddings: bool = False
  lora: lora_lib.Settings | None = None
  max_length: int = 2048
  usable_vocab: int | None = None

  def __post_init__(self):
    for name in (
        'vocab_size',
        'width',
        'num_layers',
        'num_heads',
        'num_kv_heads',
        'head_width',
        'mlp_width',
        'max_length',
    ):
      if getattr(self, name) < 1:
        raise ValueError(
            f'model: {name} must be at least 1, got {getattr(self, name)}.'
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f'model: num_heads = {self.num_heads} must be a multiple of'
          f' num_kv_heads = {self.num_kv_heads}.'
      )
    if self.head_width % 2:
      raise ValueError(
          'model: rotary positions need an even head_width, got'
          f' {self.head_width}.'
      )
    if self.activation not in ACTIVATIONS:
      raise ValueError(
          f'model: activation must be one of {ACTIVATIONS}, got'
          f' {self.activation!r}.'
      )
    kind = rope_kind(self.rope_scaling)
    if kind not in ROPE_KINDS:
      raise ValueError(
          f'model: rope_scaling of kind {kind!r} is not known; use one of'
          f' {ROPE_KINDS} or null.'
      )
    usable = self.usable_vocab
    if usable is not None and not 0 < usable <= self.vocab_size:
      raise ValueError(
          f'model: usable_vocab = {usable} must lie between 1 and vocab_size ='
          f' {self.vocab_size}; the tokenizer does not fit the model.'
      )

  def __hash__(self) -> int:
    scaling = tuple(sorted((self.rope_scaling or {}).items()))
    plain = dataclasses.astuple(dataclasses.replace(self, rope_scaling=None))
    return hash((plain, scaling))


def rope_kind(scaling: Mapping[str, Any] | None) -> str:
  """Kind of a `rope_scaling` mapping, under either of its key names (K41)."""
  if not scaling:
    return 'default'
  return scaling.get('rope_type', scaling.get('type', 'default'))
