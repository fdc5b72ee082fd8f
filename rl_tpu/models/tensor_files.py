"""The *.safetensors files of a folder: opened lazily, written in shards.

Nothing is read before every file is there and every name is known (K40).
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from rl_tpu.text import json_files
from rl_tpu.types import stops

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
# What PEFT puts on another model.
ADAPTERS = ('adapter_config.json', 'adapter_model.safetensors')
# A folder above it is written as several files with an index.
SHARD_BYTES = 4 * 2**30

DTYPES = {'float32': np.float32, 'bfloat16': jnp.bfloat16}
_FILE_DTYPES = ('F32', 'BF16', 'F16')


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One tensor of a file; its numbers stay there until they are asked for.

  Attributes:
    name: in the file.
    file: path of the file.
    shape: as stored.
    nbytes: as stored.
  """

  name: str
  file: pathlib.Path
  shape: tuple[int, ...]
  nbytes: int
  _slice: Any

  def read(self, cut: tuple[slice, ...] | None = None) -> np.ndarray:
    """Float32 numbers of a part of it; None is all of it.

    Raises:
      ValueError: one of them is not finite.
    """
    array = self._slice[cut or (slice(None),) * len(self.shape)]
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
      raise ValueError(
          f'{self.file}: tensor {self.name} holds NaN or inf; use another'
          ' checkpoint of the model.'
      )
    return array


@dataclasses.dataclass(frozen=True)
class Entry:
  """A tensor to be written: what it is called and how to get it."""

  name: str
  shape: tuple[int, ...]
  make: Callable[[], np.ndarray]


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object of a model folder.

  Raises:
    ValueError: no such file, or another content.
  """
  if not json_files.is_there(path):
    raise ValueError(
        f'{path} is missing: the model folder must hold the files of a Hugging'
        ' Face export.'
    )
  return json_files.read_object(path)


def open_folder(folder: pathlib.Path) -> dict[str, Tensor]:
  """Every tensor of a folder's model files by name; nothing is read yet.

  The single file and an index whose shards are there are two models: which of
  them is meant, nobody can say (K52). Files of other formats are not looked at.

  Raises:
    ValueError: a file that is missing or unreadable, a tensor that the index
      names and its file does not hold, one that two files hold, one of
      another dtype than float32, bfloat16 and float16, two sets of weights,
      or adapters beside a model.
  """
  for name in ADAPTERS:
    if json_files.is_there(folder / name):
      raise ValueError(
          f'{folder / name}: adapters are beside the model, and are not read;'
          ' merge them into it, or move them out of the folder.'
      )
  single = json_files.is_there(folder / SINGLE)
  if not json_files.is_there(folder / INDEX):
    if not single:
      raise ValueError(f'{folder} holds neither {SINGLE} nor {INDEX}.')
    return open_file(folder / SINGLE)
  weight_map = _weight_map(folder / INDEX)
  files = sorted(set(weight_map.values()))
  found = [file for file in files if json_files.is_there(folder / file)]
  if single and not set(found) - {SINGLE}:
    return open_file(folder / SINGLE)  # The index is an older model's.
  if single:
    raise ValueError(
        f'{folder} holds two sets of weights, {SINGLE} and {INDEX} with'
        f' {sorted(set(found) - {SINGLE})[0]}; take one of them away.'
    )
  missing = sorted(set(files) - set(found))
  if missing:
    raise ValueError(
        f'{folder / missing[0]} is missing: {INDEX} names it; copy all'
        ' shards of the model.'
    )
  return _open_shards(folder, files, weight_map)


def _weight_map(path: pathlib.Path) -> dict[str, str]:
  """The index's file of every tensor; all of them are beside it."""
  found = read_json(path).get('weight_map')
  if not isinstance(found, dict) or not found:
    shown = 'null' if found is None else json_files.shown(found)
    raise ValueError(
        f'{path}: weight_map must be an object of tensors and their files, got'
        f' {shown}.'
    )
  for name, file in found.items():
    if (
        not isinstance(file, str)
        or pathlib.PurePath(file).name != file
        or not file.endswith('.safetensors')
    ):
      raise ValueError(
          f'{path}: weight_map.{name} = {json_files.shown(file)} must be the'
          ' name of a .safetensors file in the same folder.'
      )
  return found


def _open_shards(folder, files, weight_map) -> dict[str, Tensor]:
  tensors: dict[str, Tensor] = {}
  for file in files:
    for name, tensor in open_file(folder / file).items():
      if name in tensors:
        raise ValueError(
            f'{folder}: tensor {name} is in {tensors[name].file.name} and in'
            f' {file}.'
        )
      tensors[name] = tensor
  for name, file in sorted(weight_map.items()):
    if name not in tensors or tensors[name].file.name != file:
      raise ValueError(f'{folder}: tensor {name} is missing in {file}.')
  return tensors


def open_file(path: pathlib.Path) -> dict[str, Tensor]:
  """Every tensor of one file by name.

  Raises:
    ValueError: the file cannot be read, or holds another dtype.
  """
  if not json_files.is_there(path):
    raise ValueError(f'{path} is missing.')
  try:
    handle = safetensors.safe_open(str(path), framework='numpy')
    slices = {name: handle.get_slice(name) for name in handle.keys()}
  except (OSError, safetensors.SafetensorError) as error:
    raise ValueError(
        f'{path} cannot be read as safetensors: {error}; copy the file anew'
        ' (a pointer of Git LFS is not the file).'
    ) from None
  tensors = {}
  for name, part in slices.items():
    dtype, shape = part.get_dtype(), tuple(part.get_shape())
    if dtype not in _FILE_DTYPES:
      raise ValueError(
          f'{path}: tensor {name} has dtype {dtype}; {", ".join(_FILE_DTYPES)}'
          ' are read.'
      )
    nbytes = math.prod(shape) * (4 if dtype == 'F32' else 2)
    tensors[name] = Tensor(name, path, shape, nbytes, part)
  return tensors


def metadata_of(path: pathlib.Path) -> Mapping[str, str]:
  """The texts beside the tensors of a file."""
  with safetensors.safe_open(str(path), framework='numpy') as handle:
    return handle.metadata() or {}


def write(
    folder: pathlib.Path,
    entries: Sequence[Entry],
    *,
    dtype: str = 'float32',
    shard_bytes: int = SHARD_BYTES,
    on_written: Callable[[int, int], None] = lambda done, total: None,
) -> None:
  """Writes a folder's tensors, one file's worth of them in memory at a time.

  Args:
    folder: an earlier model in it is replaced.
    entries: in the order of the files.
    dtype: float32 or bfloat16.
    shard_bytes: size of a file at most, except for a larger tensor.
    on_written: called after every tensor with the bytes so far and in all.
  """
  for old in [*folder.glob('model-*-of-*.safetensors'), folder / INDEX]:
    old.unlink(missing_ok=True)
  size_of = lambda e: math.prod(e.shape) * np.dtype(DTYPES[dtype]).itemsize
  shards = _shards(entries, size_of, shard_bytes)
  total, done, weight_map = sum(map(size_of, entries)), 0, {}

  def make(entry: Entry) -> np.ndarray:
    nonlocal done
    array = np.ascontiguousarray(entry.make(), DTYPES[dtype])
    done += array.nbytes
    on_written(done, total)
    return array

  for number, shard in enumerate(shards, start=1):
    file = f'model-{number:05}-of-{len(shards):05}.safetensors'
    file = file if len(shards) > 1 else SINGLE
    # Not bound to a name: it is free before the next file's are made.
    write_file(folder / file, {e.name: make(e) for e in shard})
    weight_map |= dict.fromkeys((e.name for e in shard), file)
  if len(shards) > 1:
    (folder / SINGLE).unlink(missing_ok=True)
    index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + '\n')


def write_file(
    path: pathlib.Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes one file, with the mark by which transformers knows the layout.

  Raises:
    WriteFailed: the disk does not take it.
  """
  metadata = {'format': 'pt'} | dict(metadata or {})
  try:
    safetensors_numpy.save_file(dict(tensors), str(path), metadata=metadata)
  except safetensors.SafetensorError as error:
    raise stops.WriteFailed(f'{path}: {error}.') from error


def _shards(entries, size_of, shard_bytes) -> list[list[Entry]]:
  """Entries by file: a new one whenever the next would not fit."""
  shards, filled = [[]], 0
  for entry in entries:
    size = size_of(entry)
    if shards[-1] and filled + size > shard_bytes:
      shards.append([])
      filled = 0
    shards[-1].append(entry)
    filled += size
  return shards
