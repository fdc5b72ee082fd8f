"""Shape and kind of a decoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_tpu.models import lora as lora_lib

ACTIVATIONS = ('silu', 'relu', 'gelu_tanh')
ROPE_KINDS = ('default', 'linear', 'llama3')
ROUTERS = ('softmax', 'sigmoid')


@dataclasses.dataclass(frozen=True)
class MixtureConfig:
  """Feed-forward layers of which each token takes a few experts.

  Attributes:
    num_experts: E.
    experts_per_token: experts that each token takes.
    expert_width: hidden size of one expert.
    router: scores of the experts: softmax of the router's logits, or their
      sigmoid; with the sigmoid a bias is added for the choice only.
    num_groups: the experts lie in as many equal groups.
    groups_per_token: experts are taken from so many of the groups, those
      whose best two add up to most.
    normalise: the weights of a token's experts are divided by their sum.
    scale: multiplies those weights.
    shared_width: hidden size of the part that every token takes, or 0.
    leading_dense: layers at the start with a plain feed-forward instead.
  """

  num_experts: int
  experts_per_token: int
  expert_width: int
  router: str = 'softmax'
  num_groups: int = 1
  groups_per_token: int = 1
  normalise: bool = True
  scale: float = 1.0
  shared_width: int = 0
  leading_dense: int = 0

  def __post_init__(self):
    if self.router not in ROUTERS:
      raise ValueError(
          f'model: mixture.router must be one of {ROUTERS}, got'
          f' {self.router!r}.'
      )
    if self.expert_width < 1 or self.num_groups < 1:
      raise ValueError(
          'model: mixture.expert_width and num_groups must be at least 1, got'
          f' {self.expert_width} and {self.num_groups}.'
      )
    if self.num_experts % self.num_groups:
      raise ValueError(
          f'model: mixture.num_experts = {self.num_experts} must be a multiple'
          f' of num_groups = {self.num_groups}.'
      )
    if not 0 < self.groups_per_token <= self.num_groups:
      raise ValueError(
          f'model: mixture.groups_per_token = {self.groups_per_token} must lie'
          f' between 1 and num_groups = {self.num_groups}.'
      )
    each = self.num_experts // self.num_groups
    if self.num_groups > 1 and each < 2:
      raise ValueError(
          f'model: mixture.num_groups = {self.num_groups} leaves one expert a'
          ' group; a group is chosen by its best two.'
      )
    within = each * self.groups_per_token
    if not 0 < self.experts_per_token <= within:
      raise ValueError(
          'model: mixture.experts_per_token ='
          f' {self.experts_per_token} must lie between 1 and the {within}'
          ' experts it can take from.'
      )


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Settings of the one decoder, which cover every family it reads.

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
    norm_offset: the norms' weights are stored as offsets from 1.
    post_norms: RMSNorm over what attention and feed-forward layer add, too.
    embed_scale: embeddings are multiplied by the root of the width.
    rope_theta: base of the rotary frequencies.
    rope_scaling: None, or the mapping of a Hugging Face config: kind linear
      or llama3.
    rotary_width: dimensions of a head that are rotated; None is all.
    rotary_interleaved: pairs are neighbours, not half of that width apart.
    local_layers: layers, by number, that see `window` positions only.
    window: positions that a local layer sees, its own included.
    local_rope_theta: base of the local layers, which are not scaled then;
      None gives them the rotation of the others.
    query_scalar: scores are divided by its root; None is `head_width`.
    attention_softcap: bound of the scores, by a tanh; None is no bound.
    logit_softcap: the same of the logits.
    qk_norm: RMSNorm over each query and key head, before the rotation.
    qkv_bias: biases on query, key and value.
    tie_embeddings: the output layer is the embedding.
    mixture: experts instead of one feed-forward layer, or None.
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
  norm_offset: bool = False
  post_norms: bool = False
  embed_scale: bool = False
  rope_theta: float = 1e4
  rope_scaling: Mapping[str, Any] | None = None
  rotary_width: int | None = None
  rotary_interleaved: bool = False
  local_layers: tuple[int, ...] = ()
  window: int | None = None
  local_rope_theta: float | None = None
  query_scalar: float | None = None
  attention_softcap: float | None = None
  logit_softcap: float | None = None
  qk_norm: bool = False
  qkv_bias: bool = False
  tie_embeddings: bool = False
  mixture: MixtureConfig | None = None
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
    for name in ('head_width', 'rotary_width'):
      size = getattr(self, name)
      if size is not None and (size % 2 or not 0 < size <= self.head_width):
        raise ValueError(
            f'model: rotary positions need an even {name} of 2 to the head'
            f' width, got {size}.'
        )
    for name in ('query_scalar', 'attention_softcap', 'logit_softcap'):
      value = getattr(self, name)
      if value is not None and value <= 0:
        raise ValueError(f'model: {name} must be above 0, got {value}.')
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
    self._check_layers()
    usable = self.usable_vocab
    if usable is not None and not 0 < usable <= self.vocab_size:
      raise ValueError(
          f'model: usable_vocab = {usable} must lie between 1 and vocab_size ='
          f' {self.vocab_size}; the tokenizer does not fit the model.'
      )

  def _check_layers(self):
    outside = [n for n in self.local_layers if not 0 <= n < self.num_layers]
    if outside:
      raise ValueError(
          f'model: local_layers names layer {outside[0]}, the layers are 0 to'
          f' {self.num_layers - 1}.'
      )
    if bool(self.local_layers) != (self.window is not None):
      raise ValueError(
          f'model: local_layers = {self.local_layers} and window ='
          f' {self.window} go together; set both or neither.'
      )
    if self.window is not None and self.window < 1:
      raise ValueError(
          f'model: window must be at least 1, got {self.window}.'
      )
    dense = self.mixture.leading_dense if self.mixture else 0
    if not 0 <= dense < self.num_layers:
      raise ValueError(
          f'model: mixture.leading_dense = {dense} must leave one of the'
          f' {self.num_layers} layers to the experts.'
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
