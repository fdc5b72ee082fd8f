"""A bucket in memory that stands for gs://."""

import threading
from unittest import mock

from absl.testing import absltest
from etils.epath import backend
from fsspec.implementations import memory

from rl_tpu.checkpointing import lease_files


class Bucket(memory.MemoryFileSystem):
  """What gs:// holds, and the names of what was written, in order."""

  store: dict[str, memory.MemoryFile] = {}
  pseudo_dirs = ['']
  written: list[str] = []
  lock = threading.Lock()

  @classmethod
  def _strip_protocol(cls, path: str) -> str:
    return '/' + path.removeprefix('gs://').strip('/')

  def glob(self, path: str, **kwargs: object) -> list[str]:
    return [p.lstrip('/') for p in super().glob(path, **kwargs)]

  def _open(
      self, path: str, mode: str = 'rb', **kwargs: object
  ) -> memory.MemoryFile:
    if 'a' in mode:
      raise NotImplementedError('a bucket cannot append')
    if 'w' in mode:
      self.written.append('gs:/' + path)
    return super()._open(path, mode, **kwargs)

  def pipe_file(
      self, path: str, value: bytes, mode: str = 'overwrite', **kwargs: object
  ) -> None:
    # gs:// lets one of several create an object, in one request.
    with self.lock:
      super().pipe_file(path, value, mode=mode, **kwargs)

  def contents(self) -> dict[str, bytes]:
    """Address -> bytes of everything stored."""
    return {'gs:/' + name: f.getvalue() for name, f in self.store.items()}


def install(test: absltest.TestCase) -> Bucket:
  """An empty bucket behind gs:// until the test ends."""
  made = Bucket()
  made.store.clear()
  made.written.clear()
  test.enter_context(mock.patch.object(
      backend.fsspec_backend, '_get_filesystem', lambda name: made
  ))
  test.enter_context(mock.patch.object(
      lease_files, '_bucket', lambda: (made, (OSError,))
  ))
  return made
