"""The critic of a model folder: value_head.safetensors beside the model.

A head belongs to the backbone that it was trained on. Either that is the
folder's model, or it is in the folder `critic` inside, whose config ties the
output layer that a critic lacks, so that it loads like any other model.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import critic
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.models import huggingface_config
from rl_tpu.models import tensor_files
from rl_tpu.text import json_files

FILE = 'value_head.safetensors'
CRITIC = 'critic'
_PREFIX = 'value_head.'
# What the file's metadata says beside the numbers.
_BACKBONE, _RANGE = 'backbone', 'value_range'


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A critic that a folder holds.

  Attributes:
    head: `kernel` [D] or, over bins, [D, M], and `bias`.
    backbone: its parameters; None where it is the folder's model.
    value_range: of the bins; None where the head is one number.
  """

  head: Mapping[str, np.ndarray]
  backbone: decoder.Params | None
  value_range: critic.ValueRange


def save(
    folder: str | pathlib.Path,
    config: config_lib.DecoderConfig,
    pretrained: Pretrained,
    *,
    config_json: Mapping[str, Any] | None = None,
    **how: Any,
) -> None:
  """Writes a critic beside the model of a folder.

  Args:
    folder: of the model.
    config: the model's settings.
    pretrained: the critic; the head is always written as float32.
    config_json: the model's config.json; None is made from `config`.
    **how: dtype, shard_bytes and on_written of `huggingface.save`, for a
      backbone.
  """
  folder = pathlib.Path(folder)
  owner = 'model' if pretrained.backbone is None else CRITIC
  head = {
      _PREFIX + name: np.asarray(jax.device_get(leaf), np.float32)
      for name, leaf in pretrained.head.items()
  }
  tensor_files.write_file(
      folder / FILE,
      head,
      {_BACKBONE: owner, _RANGE: json.dumps(pretrained.value_range)},
  )
  if pretrained.backbone is not None:
    content = config_json or huggingface_config.render(config)
    huggingface.save(
        folder / CRITIC,
        dataclasses.replace(config, tie_embeddings=True),
        pretrained.backbone,
        config_json={**content, 'tie_word_embeddings': True},
        **how,
    )


def load(
    folder: str | pathlib.Path,
    config: config_lib.DecoderConfig,
    *,
    mesh: jax.sharding.Mesh | None = None,
) -> Pretrained | None:
  """Reads the critic of a folder; None where it has none.

  Args:
    folder: of the model.
    config: the model's settings.
    mesh: where a backbone goes.

  Raises:
    ValueError: a tensor that is missing or left over, a head for another
      width, a backbone that is missing or of another shape than the model.
  """
  path = pathlib.Path(folder) / FILE
  if not json_files.is_there(path):
    return None
  tensors = tensor_files.open_file(path)
  names = {_PREFIX + name for name in ('kernel', 'bias')}
  for name in sorted(names ^ set(tensors)):
    problem = 'is missing' if name in names else 'has no place in a value head'
    raise ValueError(f'{path}: tensor {name} {problem}.')
  kernel, bias = (tensors[_PREFIX + name].shape for name in ('kernel', 'bias'))
  if kernel[:1] != (config.width,) or kernel[1:] != bias or len(bias) > 1:
    raise ValueError(
        f'{path}: value_head.kernel has shape {list(kernel)} and'
        f' value_head.bias {list(bias)}; the model is {config.width} wide.'
    )
  head = {n.removeprefix(_PREFIX): t.read() for n, t in tensors.items()}
  said = tensor_files.metadata_of(path)
  limits = _limits(path, said.get(_RANGE, 'null'))
  owner, backbone = said.get(_BACKBONE, 'model'), None
  if owner not in ('model', CRITIC):
    raise ValueError(
        f'{path}: its {_BACKBONE} must be model or {CRITIC}, got'
        f' {json_files.shown(owner)}.'
    )
  if owner == CRITIC:
    backbone = _backbone(folder, config, mesh)
  return Pretrained(head, backbone, limits)


def _limits(path: pathlib.Path, text: str) -> critic.ValueRange:
  """The range of the bins: two numbers, or null."""
  data = f'{{"{_RANGE}": {text}}}'.encode('utf-8', 'surrogatepass')
  found = json_files.loads_object(data, path)[_RANGE]
  if found is None:
    return None
  is_range = isinstance(found, list) and len(found) == 2
  if not is_range or not all(type(x) in (int, float) for x in found):
    raise ValueError(
        f'{path}: its {_RANGE} must be two numbers or null, got'
        f' {json_files.shown(found)}.'
    )
  return found[0], found[1]


def _backbone(folder, config, mesh) -> decoder.Params:
  path = pathlib.Path(folder) / CRITIC
  found, params = huggingface.load(path, mesh=mesh)
  if found != dataclasses.replace(
      config, tie_embeddings=True, usable_vocab=None
  ):
    raise ValueError(
        f'{path}: its config.json is not that of the model in {folder}; a'
        ' critic has the shape of its actor.'
    )
  return params
