"""The rotation of a config.json: its bases, its scaling and its share.

They stand in fields of their own, in `rope_scaling` or, since transformers 5,
in `rope_parameters`. As transformers 5 reads them, what a dictionary holds goes
before a field outside it; two dictionaries that disagree are refused.
"""

from collections.abc import Mapping
from typing import Any

from rl_tpu.models import config as config_lib
from rl_tpu.models import huggingface_families as families
from rl_tpu.models import huggingface_fields
from rl_tpu.text import json_files

LAYER_KINDS = ('full_attention', 'sliding_attention')

_FIELDS = {
    'default': (),
    'linear': ('factor',),
    'llama3': (
        'factor',
        'low_freq_factor',
        'high_freq_factor',
        'original_max_position_embeddings',
    ),
}
_NAMES = ('rope_type', 'type', 'rope_theta', 'partial_rotary_factor')
_NEWER, _OLDER = 'rope_parameters', 'rope_scaling'

Data = Mapping[str, Any]


def read(
    data: Data, family: families.Family, head_width: int
) -> dict[str, Any]:
  """The decoder's settings of the rotation (K41, K51).

  Args:
    data: of config.json, the family's defaults included.
    family: of the model.
    head_width: of the model.

  Raises:
    ValueError: a kind or a member that is not supported, a number out of
      bounds, or two places that disagree.
  """
  local: Data = {}
  newer = dict(data.get(_NEWER) or {})
  older = dict(data.get(_OLDER) or {})
  if family.has_local_rope:
    newer, local = _by_layer(newer)
  elif set(newer) & set(LAYER_KINDS):
    raise ValueError(
        f'{_NEWER} by kind of layer is not supported in this model_type; give'
        ' one rotation for all layers.'
    )
  found = [
      _rotation(where, given, data)
      for where, given in ((_OLDER, older), (_NEWER, newer))
      if given
  ]
  if len(found) == 2 and found[0] != found[1]:
    raise ValueError(
        f'{_OLDER} = {json_files.shown(older)} and {_NEWER} ='
        f' {json_files.shown(newer)} disagree; take one of them out.'
    )
  theta, scaling, share = (found or [_rotation(_NEWER, {}, data)])[0]
  width = int(head_width * share)
  if width != head_width and not family.has_partial_rotary:
    raise ValueError(
        f'partial_rotary_factor = {share} is not supported in this model_type.'
    )
  out = {
      'rope_theta': theta,
      'rope_scaling': scaling,
      'rotary_width': None if width == head_width else width,
  }
  if family.has_local_rope:
    out['local_rope_theta'] = _local_theta(local, data)
  return out


def _by_layer(newer: Data) -> tuple[dict[str, Any], dict[str, Any]]:
  """The rotations of the layers with full and with sliding attention."""
  huggingface_fields.check_rope(
      _NEWER, {n: v for n, v in newer.items() if v is not None}
  )
  surplus = sorted(set(newer) - set(LAYER_KINDS))
  if surplus:
    raise ValueError(
        f'{_NEWER} holds {json_files.shown(surplus)} for all layers; this'
        f' model_type has a rotation for each of {list(LAYER_KINDS)}.'
    )
  full, local = (dict(newer.get(kind) or {}) for kind in LAYER_KINDS)
  return full, local


def _rotation(
    where: str, given: Data, data: Data
) -> tuple[float, dict[str, Any] | None, float]:
  """Base, scaling and share of one dictionary, filled up from the fields."""
  huggingface_fields.check_rope(where, given)
  theta = given.get('rope_theta', data.get('rope_theta', 1e4))
  if theta is None:
    raise ValueError('rope_theta must be a number, got null.')
  share = given.get('partial_rotary_factor', data.get('partial_rotary_factor'))
  return theta, _scaling(where, given), 1.0 if share is None else share


def _local_theta(local: Data, data: Data) -> float:
  """The base of the layers with a window, which are never scaled."""
  where = f'{_NEWER}.sliding_attention'
  theta, scaling, share = _rotation(
      where, local, {'rope_theta': data.get('rope_local_base_freq', 1e4)}
  )
  if scaling is not None or share != 1:
    raise ValueError(
        f'{where} = {json_files.shown(local)} is not supported; only the'
        ' layers with full attention may be scaled.'
    )
  return theta


def _scaling(where: str, given: Data) -> dict[str, Any] | None:
  kind = config_lib.rope_kind(given)
  if kind not in _FIELDS:
    raise ValueError(
        f'{where} of kind {json_files.shown(kind)} is not supported; use one of'
        f' {config_lib.ROPE_KINDS}.'
    )
  if given.get('type', kind) != kind:
    raise ValueError(
        f'{where} is of kind {kind!r} by rope_type and of kind'
        f' {json_files.shown(given["type"])} by type; take one of them out.'
    )
  names = _FIELDS[kind]
  missing = [name for name in names if name not in given]
  if missing:
    raise ValueError(f'{where} lacks {missing}.')
  surplus = [
      name
      for name, value in given.items()
      if name not in (*names, *_NAMES) and value is not None
  ]
  if surplus:
    raise ValueError(
        f'{where} holds {json_files.shown(surplus)}, which kind {kind!r} does'
        ' not read.'
    )
  if kind == 'llama3' and given['high_freq_factor'] <= given['low_freq_factor']:
    raise ValueError(
        f'{where}.high_freq_factor = {given["high_freq_factor"]} must be above'
        f' low_freq_factor = {given["low_freq_factor"]}.'
    )
  if kind == 'default':
    return None
  return {'rope_type': kind, **{name: given[name] for name in names}}


def render(
    config: config_lib.DecoderConfig, family: families.Family
) -> dict[str, Any]:
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
