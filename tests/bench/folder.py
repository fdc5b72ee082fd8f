"""Reading and writing a model folder of a gigabyte.

The folder is random and temporary. Memory is resident memory that belongs to
no file: the pages of a file that is mapped are the kernel's to take back.
"""

from concurrent import futures
import multiprocessing
import pathlib
import tempfile
import threading
import time

import jax
import numpy as np

from rl_tpu.config import schema
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.models import tensor_files
from rl_tpu.sharding import mesh as mesh_lib

_SHARD_BYTES = 2**28
_MODEL = model_config.DecoderConfig(
    vocab_size=32768,
    width=1024,
    num_layers=17,
    num_heads=16,
    num_kv_heads=4,
    head_width=64,
    mlp_width=3072,
    tie_embeddings=False,
)


class _Peak:
  """Seconds and highest anonymous memory, sampled every 5 ms."""

  def __enter__(self) -> '_Peak':
    self.before = self.highest = _anonymous()
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    self._began = time.perf_counter(), time.process_time()
    return self

  def _watch(self) -> None:
    while not self._closed.wait(0.005):
      self.highest = max(self.highest, _anonymous())

  def __exit__(self, *exception: object) -> None:
    wall, cpu = self._began
    self.seconds = time.perf_counter() - wall
    self.cpu_seconds = time.process_time() - cpu
    self._closed.set()
    self._thread.join()


def _anonymous() -> int:
  """Resident bytes of this process that are no file's."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith('RssAnon:'):
      return 1024 * int(line.split()[1])
  raise OSError('/proc/self/status has no RssAnon: this needs Linux.')


def _write(folder: str, dtype: str) -> dict[str, float]:
  """A folder of a gigabyte (float32): its size and its largest tensor."""
  rng = np.random.default_rng(0)
  draw = lambda leaf: 0.02 * rng.standard_normal(leaf.shape, np.float32)
  huggingface.save(
      folder,
      _MODEL,
      jax.tree.map(draw, decoder.shapes_of(_MODEL)),
      dtype=dtype,
      shard_bytes=_SHARD_BYTES,
  )
  held = tensor_files.open_folder(pathlib.Path(folder)).values()
  sizes = [tensor.nbytes for tensor in held]
  return {'folder_mib': sum(sizes) / 2**20, 'largest_mib': max(sizes) / 2**20}


def _load_and_save(folder: str, dtype: str) -> dict[str, float]:
  """Memory beside the parameters, and seconds, of either way."""
  mesh = mesh_lib.make_mesh(schema.MeshConfig())
  with _Peak() as load:
    _, params = huggingface.load(folder, mesh=mesh)
    jax.block_until_ready(params)
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
  with _Peak() as save:
    huggingface.save(
        folder + '-saved',
        _MODEL,
        params,
        dtype=dtype,
        shard_bytes=_SHARD_BYTES,
    )
  return {
      'load_s': load.seconds,
      'load_cpu_s': load.cpu_seconds,
      'load_excess_mib': (load.highest - load.before - size) / 2**20,
      'save_s': save.seconds,
      'save_cpu_s': save.cpu_seconds,
      'save_excess_mib': (save.highest - save.before) / 2**20,
  }


def folder() -> dict[str, float]:
  """Peak memory and seconds of loading and of saving, in either dtype.

  The excess of a load is its peak less the memory before and less the
  parameters. Every step has a process of its own: memory that an earlier one
  gave back would hide what is taken.
  """
  figures = {}
  workers = futures.ProcessPoolExecutor(
      1, multiprocessing.get_context('spawn'), max_tasks_per_child=1
  )
  with tempfile.TemporaryDirectory() as root, workers:
    for dtype in tensor_files.DTYPES:
      path = f'{root}/{dtype}'
      found = workers.submit(_write, path, dtype).result()
      found |= workers.submit(_load_and_save, path, dtype).result()
      found['load_excess_of_largest'] = (
          found['load_excess_mib'] / found['largest_mib']
      )
      figures |= {f'{dtype}_{name}': v for name, v in found.items()}
  return {name: round(value, 3) for name, value in figures.items()}
