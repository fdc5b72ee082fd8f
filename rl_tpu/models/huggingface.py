"""Hugging Face folders: config.json and *.safetensors, in and out.

Every tensor of a folder is accounted for: one that is missing, left over or
of another shape is an error with its name (K40).
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import huggingface_config
from rl_tpu.models import huggingface_names
from rl_tpu.sharding import rules

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
VALUE_HEAD = 'value_head.safetensors'


def read_config(folder: str | pathlib.Path) -> config_lib.DecoderConfig:
  """The decoder's settings from config.json.

  Raises:
    ValueError: no such file, or a model that the decoder does not cover.
  """
  path = pathlib.Path(folder) / 'config.json'
  return huggingface_config.parse(_read_json(path), path)


def load(
    folder: str | pathlib.Path, *, mesh: jax.sharding.Mesh | None = None
) -> tuple[config_lib.DecoderConfig, decoder.Params]:
  """Reads a model as float32 parameters.

  Args:
    folder: config.json with model.safetensors, or an index and its shards.
    mesh: places every parameter by the sharding rules as it is read; None
      leaves them on the default device.

  Returns:
    The decoder's settings and its parameters.

  Raises:
    ValueError: a file or a tensor that is missing, left over or misshapen.
  """
  folder = pathlib.Path(folder)
  config = read_config(folder)
  files = _tensor_files(folder)
  wanted = decoder.shapes_of(config)
  tensors = _open_all(folder, files)
  _check_names(folder, tensors, wanted, config)
  if mesh is None:
    placement = jax.tree.map(lambda _: None, wanted)
  else:
    axes = decoder.logical_axes(config)
    placement = rules.param_shardings(axes, mesh, wanted)
  read = lambda path, leaf, sharding: jax.device_put(
      _read_leaf(folder, tensors, path, leaf.shape, config), sharding
  )
  params = jax.tree_util.tree_map_with_path(read, wanted, placement)
  if config.tie_embeddings and huggingface_names.HEAD in tensors:
    _check_tied(
        folder,
        tensors[huggingface_names.HEAD],
        params['embed']['embedding'],
    )
  return config, params


def save(
    folder: str | pathlib.Path,
    config: config_lib.DecoderConfig,
    params: decoder.Params,
    *,
    tokenizer_files: Sequence[str | pathlib.Path] = (),
    value_head: Mapping[str, Any] | None = None,
) -> None:
  """Writes a folder that `load`, and transformers, read back bit by bit.

  Args:
    folder: made if it is not there.
    config: the decoder's settings.
    params: its parameters.
    tokenizer_files: copied beside the model under their own names.
    value_head: the critic's head, into a file of its own.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  text = json.dumps(huggingface_config.render(config), indent=2)
  (folder / 'config.json').write_text(text + '\n')
  tensors = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    keys = huggingface_names.keys_of(path)
    array = np.asarray(jax.device_get(leaf), np.float32)
    for piece in huggingface_names.pieces(keys, leaf.shape, config):
      part = huggingface_names.to_file(keys, array[piece.index])
      tensors[piece.name] = np.ascontiguousarray(part)
  safetensors_numpy.save_file(
      tensors, str(folder / SINGLE), metadata={'format': 'pt'}
  )
  if value_head is not None:
    head = {
        f'value_head.{name}': np.asarray(jax.device_get(leaf), np.float32)
        for name, leaf in value_head.items()
    }
    safetensors_numpy.save_file(head, str(folder / VALUE_HEAD))
  for file in tokenizer_files:
    shutil.copy(file, folder / pathlib.Path(file).name)


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  if not path.is_file():
    raise ValueError(
        f'{path} is missing: the model folder must hold the files of a Hugging'
        ' Face export.'
    )
  try:
    content = json.loads(path.read_text())
  except ValueError as error:
    raise ValueError(f'{path} is no JSON: {error}') from None
  if not isinstance(content, dict):
    raise ValueError(f'{path} must hold a JSON object.')
  return content


def _tensor_files(folder: pathlib.Path) -> list[str]:
  """Names of the safetensors files; all of them exist (K40 b)."""
  if (folder / INDEX).is_file():
    weight_map = _read_json(folder / INDEX).get('weight_map', {})
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
      raise ValueError(
          f'{folder / missing[0]} is missing: {INDEX} names it; copy all'
          ' shards of the model.'
      )
    return names
  if not (folder / SINGLE).is_file():
    raise ValueError(f'{folder} holds neither {SINGLE} nor {INDEX}.')
  return [SINGLE]


def _open_all(folder, files) -> dict[str, tuple[Any, str]]:
  """Every tensor's open file and name; nothing is read yet."""
  tensors = {}
  for file in files:
    try:
      handle = safetensors.safe_open(str(folder / file), framework='numpy')
      names = list(handle.keys())
    except (OSError, safetensors.SafetensorError) as error:
      raise ValueError(
          f'{folder / file} cannot be read as safetensors: {error}'
      ) from None
    for name in names:
      tensors[name] = (handle, name)
  return tensors


def _check_names(folder, tensors, wanted, config) -> None:
  expected = set()
  for path, leaf in jax.tree_util.tree_leaves_with_path(wanted):
    keys = huggingface_names.keys_of(path)
    pieces = huggingface_names.pieces(keys, leaf.shape, config)
    expected.update(piece.name for piece in pieces)
  missing = sorted(expected - set(tensors))
  if missing:
    raise ValueError(
        f'{folder}: tensor {missing[0]} is missing ({len(missing)} in all).'
    )
  head = {huggingface_names.HEAD} if config.tie_embeddings else set()
  allowed = expected | head
  extra = sorted(
      name
      for name in tensors
      if name not in allowed and not name.endswith(huggingface_names.BUFFER)
  )
  if extra:
    raise ValueError(
        f'{folder}: tensor {extra[0]} has no place in the model'
        f' ({len(extra)} in all).'
    )


def _check_tied(folder, head, embedding: jax.Array) -> None:
  if not np.array_equal(_read(head), np.asarray(embedding)):
    raise ValueError(
        f'{folder}: tie_word_embeddings is set, but {huggingface_names.HEAD}'
        ' differs from the embedding.'
    )


def _read(tensor: tuple[Any, str]) -> np.ndarray:
  handle, name = tensor
  return np.asarray(handle.get_tensor(name)).astype(np.float32)


def _read_leaf(folder, tensors, path, shape, config) -> np.ndarray:
  """One parameter, put together from its pieces."""
  keys = huggingface_names.keys_of(path)
  out = np.empty(shape, np.float32)
  for piece in huggingface_names.pieces(keys, shape, config):
    array = _read(tensors[piece.name])
    each = shape[len(piece.index) :]
    file_shape = huggingface_names.file_shape(keys, each)
    if array.shape != file_shape:
      raise ValueError(
          f'{folder}: tensor {piece.name} has shape {list(array.shape)},'
          f' config.json asks for {list(file_shape)}.'
      )
    out[piece.index] = huggingface_names.from_file(keys, array, each)
  return out
