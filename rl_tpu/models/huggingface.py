"""Hugging Face folders: config.json and *.safetensors, in and out.

Every tensor of a folder is accounted for: one that is missing, left over or
of another shape is an error with its name (K40). Tensors go to their shards
in blocks, and to their files one file at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import itertools
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.models import huggingface_config
from rl_tpu.models import huggingface_names
from rl_tpu.models import tensor_files
from rl_tpu.sharding import filling
from rl_tpu.sharding import rules

# Blocks are read in this share of the largest tensor: what is in memory beside
# the parameters stays well below that tensor.
_BLOCK_SHARE = 1 / 64
_BLOCK_BYTES = (2**18, 2**26)  # At least and at most.


def read_config(folder: str | pathlib.Path) -> config_lib.DecoderConfig:
  """The decoder's settings from config.json.

  Raises:
    ValueError: no such file, or a model that the decoder does not cover.
  """
  path = pathlib.Path(folder) / 'config.json'
  return huggingface_config.parse(tensor_files.read_json(path), path)


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
    ValueError: a file or a tensor that is missing, left over, misshapen or of
      a dtype that is not read.
  """
  folder = pathlib.Path(folder)
  config = read_config(folder)
  tensors = tensor_files.open_folder(folder)
  wanted = decoder.shapes_of(config)
  _check_tensors(folder, tensors, config)
  largest = max(tensor.nbytes for tensor in tensors.values())
  at_least, at_most = _BLOCK_BYTES
  block_bytes = min(max(int(largest * _BLOCK_SHARE), at_least), at_most)
  if config.tie_embeddings and huggingface_names.HEAD in tensors:
    _check_tied(folder, tensors, block_bytes)
  if mesh is None:
    placement = jax.tree.map(lambda _: None, wanted)
  else:
    axes = decoder.logical_axes(config)
    placement = rules.param_shardings(axes, mesh, wanted)

  def place(path, leaf, sharding):
    keys = huggingface_names.keys_of(path)
    pieces = huggingface_names.pieces(keys, leaf.shape, config)
    depth = len(pieces[0].index)
    inner = huggingface_names.file_axes(keys, len(leaf.shape) - depth)[0]
    return filling.fill(
        leaf.shape,
        sharding,
        functools.partial(
            _read, tensors, keys, leaf.shape, {p.index: p for p in pieces}
        ),
        split=(*range(depth), *(depth + axis for axis in inner)),
        block_bytes=block_bytes,
    )

  return config, jax.tree_util.tree_map_with_path(place, wanted, placement)


def save(
    folder: str | pathlib.Path,
    config: config_lib.DecoderConfig,
    params: decoder.Params,
    *,
    config_json: Mapping[str, Any] | None = None,
    tokenizer_files: Sequence[str | pathlib.Path] = (),
    dtype: str = 'float32',
    shard_bytes: int = tensor_files.SHARD_BYTES,
    on_written: Callable[[int, int], None] = lambda done, total: None,
) -> None:
  """Writes a folder that `load`, and transformers, read back bit by bit.

  Args:
    folder: made if it is not there.
    config: the decoder's settings.
    params: its parameters.
    config_json: content of config.json where the model came from a folder;
      None is made from `config`.
    tokenizer_files: copied beside the model under their own names.
    dtype: of the numbers in the files: float32 or bfloat16.
    shard_bytes: size of a file at most; a larger model gets several and an
      index.
    on_written: called after every tensor with the bytes so far and in all.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  write_config(folder, config_json or huggingface_config.render(config), dtype)
  tensor_files.write(
      folder,
      list(_entries(params, config)),
      dtype=dtype,
      shard_bytes=shard_bytes,
      on_written=on_written,
  )
  for file in tokenizer_files:
    shutil.copy(file, folder / pathlib.Path(file).name)


def write_config(
    folder: pathlib.Path, content: Mapping[str, Any], dtype: str = 'float32'
) -> None:
  """Writes config.json, the files' dtype under the names that it has there."""
  names = [n for n in ('dtype', 'torch_dtype') if n in content]
  told = dict.fromkeys(names or ['torch_dtype'], dtype)
  text = json.dumps({**content, **told}, indent=2)
  (folder / 'config.json').write_text(text + '\n', encoding='utf-8')


def tensor_shapes(
    config: config_lib.DecoderConfig,
) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the tensors of a model's folder."""
  shapes = {}
  leaves = jax.tree_util.tree_leaves_with_path(decoder.shapes_of(config))
  for path, leaf in leaves:
    keys = huggingface_names.keys_of(path)
    for piece in huggingface_names.pieces(keys, leaf.shape, config):
      rows, *rest = huggingface_names.file_shape(
          keys, leaf.shape[len(piece.index) :]
      )
      shapes[piece.name] = (rows * piece.part[1], *rest)
  return {name: shapes[name] for name in sorted(shapes, key=_natural)}


def _check_tensors(folder, tensors, config) -> None:
  """Names and shapes, before anything is read."""
  expected = tensor_shapes(config)
  missing = sorted(set(expected) - set(tensors))
  if missing:
    raise ValueError(
        f'{folder}: tensor {missing[0]} is missing ({len(missing)} in all).'
    )
  head = {huggingface_names.HEAD} if config.tie_embeddings else set()
  extra = sorted(
      name
      for name in set(tensors) - set(expected) - head
      if not huggingface_names.is_ignored(name, config)
  )
  if extra:
    raise ValueError(
        f'{folder}: tensor {extra[0]} has no place in the model'
        f' ({len(extra)} in all).'
    )
  for name, shape in expected.items():
    if tensors[name].shape != shape:
      raise ValueError(
          f'{folder}: tensor {name} has shape {list(tensors[name].shape)},'
          f' config.json asks for {list(shape)}.'
      )


def _check_tied(folder, tensors, block_bytes: int) -> None:
  """The output layer of a tied model is the embedding (K40 c)."""
  head = tensors[huggingface_names.HEAD]
  embedding = tensors[huggingface_names.EMBEDDING]
  whole = tuple(slice(0, size) for size in embedding.shape)
  if head.shape != embedding.shape or not all(
      np.array_equal(head.read(cut), embedding.read(cut))
      for cut in filling.blocks(whole, (0,), block_bytes)
  ):
    raise ValueError(
        f'{folder}: tie_word_embeddings is set, but {head.name} differs from'
        ' the embedding.'
    )


def _read(tensors, keys, shape, pieces, region: filling.Region) -> np.ndarray:
  """A region of a parameter, put together from its pieces by their places."""
  depth = len(next(iter(pieces)))
  outer, inner = region[:depth], region[depth:]
  out = np.empty([cut.stop - cut.start for cut in region], np.float32)
  for index in itertools.product(*(range(c.start, c.stop) for c in outer)):
    place = tuple(i - cut.start for i, cut in zip(index, outer))
    out[place] = _read_piece(
        tensors, keys, shape[depth:], pieces[index], inner
    )
  return out


def _read_piece(tensors, keys, shape, piece, region) -> np.ndarray:
  """A region of a piece of shape `shape`.

  An axis of the file may be several of the parameter. The outermost of them
  is cut in the file, the others in memory.
  """
  groups = huggingface_names.file_axes(keys, len(shape))
  cuts, sizes = [], []
  for group in groups:
    first, *rest = group
    step = int(np.prod([shape[axis] for axis in rest], dtype=int))
    cut = region[first]
    cuts.append(slice(cut.start * step, cut.stop * step))
    sizes += [cut.stop - cut.start, *(shape[axis] for axis in rest)]
  rows = huggingface_names.file_shape(keys, shape)[0]
  start = piece.part[0] * rows
  cuts[0] = slice(start + cuts[0].start, start + cuts[0].stop)
  order = [axis for group in groups for axis in group]
  array = tensors[piece.name].read(tuple(cuts)).reshape(sizes)
  array = array.transpose(np.argsort(order))
  outermost = {group[0] for group in groups}
  return array[
      tuple(
          slice(None) if axis in outermost else cut
          for axis, cut in enumerate(region)
      )
  ]


def _entries(params, config) -> Iterator[tensor_files.Entry]:
  """The folder's tensors, whose parts may be of several parameters."""
  held: dict[str, list[Any]] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    keys = huggingface_names.keys_of(path)
    for piece in huggingface_names.pieces(keys, leaf.shape, config):
      held.setdefault(piece.name, []).append((piece, keys, leaf))
  for name, shape in tensor_shapes(config).items():
    parts = sorted(held[name], key=lambda part: part[0].part)
    yield tensor_files.Entry(name, shape, functools.partial(_fetch, parts))


def _fetch(held) -> np.ndarray:
  """One tensor of the folder, from the devices."""
  arrays = [
      huggingface_names.to_file(
          keys, np.asarray(jax.device_get(leaf[piece.index]), np.float32)
      )
      for piece, keys, leaf in held
  ]
  return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _natural(name: str) -> list[tuple[bool, Any]]:
  """Sorts layer 2 before layer 10."""
  return [
      (word.isdigit(), int(word) if word.isdigit() else word)
      for word in name.split('.')
  ]
