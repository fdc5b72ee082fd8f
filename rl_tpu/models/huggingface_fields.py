"""What the fields of a config.json may hold, before anything is made of them.

A model folder is data from strangers: every number that is read has bounds,
far beyond any model and far below what a machine cannot hold.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from rl_tpu.text import json_files


@dataclasses.dataclass(frozen=True)
class Whole:
  """A whole number between two others, both included."""

  low: int
  high: int

  def fault(self, value: Any) -> str | None:
    """What is asked of a value that is not of this kind; None if it is."""
    if not isinstance(value, int) or isinstance(value, bool):
      return 'a whole number'
    if not self.low <= value <= self.high:
      return f'a whole number from {self.low} to {self.high}'
    return None


@dataclasses.dataclass(frozen=True)
class Number:
  """A number above 0, up to another."""

  high: float

  def fault(self, value: Any) -> str | None:
    """What is asked of a value that is not of this kind; None if it is."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
      return 'a number'
    if not 0 < value <= self.high:
      return f'a number above 0, {self.high:g} at most'
    return None


@dataclasses.dataclass(frozen=True)
class Of:
  """A value of one of Python's own kinds."""

  kind: type
  shown: str

  def fault(self, value: Any) -> str | None:
    """What is asked of a value that is not of this kind; None if it is."""
    return None if isinstance(value, self.kind) else self.shown


@dataclasses.dataclass(frozen=True)
class Texts:
  """A list of texts."""

  def fault(self, value: Any) -> str | None:
    """What is asked of a value that is not of this kind; None if it is."""
    is_it = isinstance(value, list) and all(isinstance(v, str) for v in value)
    return None if is_it else 'a list of texts'


_FLAG, _TEXT = Of(bool, 'true or false'), Of(str, 'a text')
_OBJECT = Of(dict, 'an object')
_LAYERS, _HEADS, _EXPERTS = Whole(1, 2**10), Whole(1, 2**12), Whole(1, 2**14)
_POSITIONS = Whole(1, 2**30)
# A kind for every field that a family reads.
KINDS = {
    'attention_bias': _FLAG,
    'attn_logit_softcapping': Number(1e6),
    'final_logit_softcapping': Number(1e6),
    'first_k_dense_replace': Whole(0, 2**10),
    'head_dim': Whole(1, 2**12),
    'hidden_act': _TEXT,
    'hidden_activation': _TEXT,
    'hidden_size': Whole(1, 2**17),
    'intermediate_size': Whole(1, 2**20),
    'layer_types': Texts(),
    'max_position_embeddings': _POSITIONS,
    'max_window_layers': Whole(0, 2**10),
    'model_type': _TEXT,
    'moe_intermediate_size': Whole(1, 2**20),
    'n_group': _EXPERTS,
    'n_routed_experts': _EXPERTS,
    'n_shared_experts': Whole(0, 2**10),
    'norm_topk_prob': _FLAG,
    'num_attention_heads': _HEADS,
    'num_experts': _EXPERTS,
    'num_experts_per_tok': _EXPERTS,
    'num_hidden_layers': _LAYERS,
    'num_key_value_heads': _HEADS,
    'num_local_experts': _EXPERTS,
    'partial_rotary_factor': Number(1),
    'query_pre_attn_scalar': Number(1e6),
    'rms_norm_eps': Number(1),
    'rope_local_base_freq': Number(1e15),
    'rope_parameters': _OBJECT,
    'rope_scaling': _OBJECT,
    'rope_theta': Number(1e15),
    'routed_scaling_factor': Number(1e6),
    'sliding_window': _POSITIONS,
    'sliding_window_pattern': _LAYERS,
    'tie_word_embeddings': _FLAG,
    'topk_group': _EXPERTS,
    'use_qk_norm': _FLAG,
    'use_sliding_window': _FLAG,
    'vocab_size': Whole(1, 2**24),
}
# Members of the dictionaries of the rotation.
ROPE_KINDS = {
    'factor': Number(1e6),
    'full_attention': _OBJECT,
    'high_freq_factor': Number(1e6),
    'low_freq_factor': Number(1e6),
    'original_max_position_embeddings': _POSITIONS,
    'partial_rotary_factor': KINDS['partial_rotary_factor'],
    'rope_theta': KINDS['rope_theta'],
    'rope_type': _TEXT,
    'sliding_attention': _OBJECT,
    'type': _TEXT,
}
# Where null is a value of its own: there is no such thing in the model.
_NONE = ('attn_logit_softcapping', 'final_logit_softcapping', 'sliding_window')
# Where null says as much as an absent field.
_ABSENT = frozenset((
    'head_dim',
    'layer_types',
    'num_key_value_heads',
    'partial_rotary_factor',
    'rope_parameters',
    'rope_scaling',
    'rope_theta',
))
# Tensors have names, a few for every expert of every layer.
_MOST_EXPERTS = 2**17


def check(
    data: Mapping[str, Any],
    names: Sequence[str],
    *,
    defaults: Mapping[str, Any],
) -> None:
  """Refuses a value of the wrong kind or out of bounds.

  Args:
    data: of config.json.
    names: of the fields that are read.
    defaults: of absent fields; null does not stand for one of them.

  Raises:
    ValueError: it names the field, the value and what it must be.
  """
  for name in names:
    if name not in data:
      continue
    value = data[name]
    is_absent = name in _ABSENT and defaults.get(name) is None
    if value is None and (is_absent or name in _NONE):
      continue
    _check_kind(name, value, KINDS[name])


def check_rope(where: str, data: Mapping[str, Any]) -> None:
  """The same for a dictionary of the rotation, whose field is `where`."""
  for name, kind in ROPE_KINDS.items():
    if name in data:
      _check_kind(f'{where}.{name}', data[name], kind)


def check_count(layers: int, experts: int) -> None:
  """Refuses more experts in all than a folder can name."""
  if layers * experts > _MOST_EXPERTS:
    raise ValueError(
        f'num_hidden_layers = {layers} of {experts} experts each are'
        f' {layers * experts} in all; {_MOST_EXPERTS} at most are read.'
    )


def _check_kind(name: str, value: Any, kind: Any) -> None:
  fault = kind.fault(value)
  if fault is not None:
    found = 'null' if value is None else json_files.shown(value)
    raise ValueError(f'{name} must be {fault}, got {found}.')
