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
from rl_tpu.sharding import rules

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
VALUE_HEAD = 'value_head.safetensors'

# Names inside `model.layers.N.`, by module of decoder.Block.
_LAYER_NAMES = {
    'attention_norm': 'input_layernorm',
    'query': 'self_attn.q_proj',
    'key': 'self_attn.k_proj',
    'value': 'self_attn.v_proj',
    'query_norm': 'self_attn.q_norm',
    'key_norm': 'self_attn.k_norm',
    'out': 'self_attn.o_proj',
    'mlp_norm': 'post_attention_layernorm',
    'gate': 'mlp.gate_proj',
    'up': 'mlp.up_proj',
    'down': 'mlp.down_proj',
}
_TOP_NAMES = {
    'embed': 'model.embed_tokens',
    'final_norm': 'model.norm',
    'lm_head': 'lm_head',
}
_HEAD = 'lm_head.weight'
_BUFFER = '.rotary_emb.inv_freq'  # Old exports hold it; it is no parameter.


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
      _read_leaf(folder, tensors, _keys(path), leaf.shape), sharding
  )
  params = jax.tree_util.tree_map_with_path(read, wanted, placement)
  if config.tie_embeddings and _HEAD in tensors:
    _check_tied(folder, tensors[_HEAD], params['embed']['embedding'])
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
    keys = _keys(path)
    array = np.asarray(jax.device_get(leaf), np.float32)
    stacked = array if keys[0] == 'layers' else array[None]
    for name, part in zip(_names(keys, len(stacked)), stacked):
      tensors[name] = np.ascontiguousarray(_to_file(keys, part))
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
    keys = _keys(path)
    layers = leaf.shape[0] if keys[0] == 'layers' else 1
    expected.update(_names(keys, layers))
  missing = sorted(expected - set(tensors))
  if missing:
    raise ValueError(
        f'{folder}: tensor {missing[0]} is missing ({len(missing)} in all).'
    )
  allowed = expected | ({_HEAD} if config.tie_embeddings else set())
  extra = sorted(
      name
      for name in tensors
      if name not in allowed and not name.endswith(_BUFFER)
  )
  if extra:
    raise ValueError(
        f'{folder}: tensor {extra[0]} has no place in the model'
        f' ({len(extra)} in all).'
    )


def _check_tied(folder, head, embedding: jax.Array) -> None:
  if not np.array_equal(_read(head), np.asarray(embedding)):
    raise ValueError(
        f'{folder}: tie_word_embeddings is set, but {_HEAD} differs from the'
        ' embedding.'
    )


def _read(tensor: tuple[Any, str]) -> np.ndarray:
  handle, name = tensor
  return np.asarray(handle.get_tensor(name)).astype(np.float32)


def _read_leaf(folder, tensors, keys, shape) -> np.ndarray:
  """One parameter, stacked over the layers."""
  stacked = keys[0] == 'layers'
  each = shape[1:] if stacked else shape
  parts = []
  for name in _names(keys, shape[0] if stacked else 1):
    array = _read(tensors[name])
    file_shape = _to_file(keys, np.broadcast_to(np.float32(0), each)).shape
    if array.shape != file_shape:
      raise ValueError(
          f'{folder}: tensor {name} has shape {list(array.shape)}, config.json'
          f' asks for {list(file_shape)}.'
      )
    parts.append((array.T if keys[-1] == 'kernel' else array).reshape(each))
  return np.stack(parts) if stacked else parts[0]


def _keys(path) -> tuple[str, ...]:
  return tuple(entry.key for entry in path)


def _names(keys: tuple[str, ...], layers: int) -> list[str]:
  """Tensor names of one parameter, one per layer."""
  kind = 'bias' if keys[-1] == 'bias' else 'weight'
  if keys[0] != 'layers':
    return [f'{_TOP_NAMES[keys[0]]}.{kind}']
  name = _LAYER_NAMES[keys[1]]
  return [f'model.layers.{index}.{name}.{kind}' for index in range(layers)]


def _to_file(keys: tuple[str, ...], array: np.ndarray) -> np.ndarray:
  """A parameter as the file has it: matrices are [out, in]."""
  if keys[-1] == 'kernel':
    inputs = array.shape[0]
    if keys[-2] == 'out':  # [H, K, D] reads heads, the others the stream.
      inputs *= array.shape[1]
    return array.reshape(inputs, -1).T
  return array if keys[-1] == 'embedding' else array.reshape(-1)
