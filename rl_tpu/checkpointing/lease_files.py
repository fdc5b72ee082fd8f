"""Files of leases: on a disk, also one of several hosts, or in a bucket."""

import os
import pathlib
import re
import tempfile
from typing import Any, Protocol

_NAME = 'lease-{:06d}.json'
_PATTERN = re.compile(r'lease-(\d{6,12})\.json')
# More is no lease.
_MAX_BYTES = 4096


class Files(Protocol):
  """The numbered leases of one work directory.

  Attributes:
    workdir: as the user names it.
    errors: what its files raise where they cannot be reached.
  """

  workdir: str
  errors: tuple[type[Exception], ...]

  def numbers(self) -> list[int]:
    """Numbers of the leases that are there."""

  def create(self, number: int, data: bytes) -> bool:
    """Creates one; False if it is there."""

  def read(self, number: int) -> tuple[bytes, Any] | None:
    """Its bytes, and a stamp that a renewal changes; None if it is gone."""

  def age_s(self, stamp: Any) -> float | None:
    """Seconds since a stamp by the clock that made it; None without one."""

  def renew(self, number: int, data: bytes) -> None:
    """Shows that the holder is alive."""

  def remove(self, number: int) -> None:
    """Removes one that may be gone."""

  def close(self) -> None:
    """Removes a directory that was made for the lease and holds nothing."""


def of(workdir: str) -> Files:
  """The leases of a work directory."""
  return _Bucket(workdir) if '://' in workdir else _Disk(workdir)


def is_lease(name: str) -> bool:
  """Whether a file of a work directory is a lease."""
  return bool(_PATTERN.fullmatch(name))


def _numbers(names: list[str]) -> list[int]:
  found = (_PATTERN.fullmatch(name) for name in names)
  return [int(match[1]) for match in found if match]


class _Disk:
  """Leases on a disk, whose times tell how old they are."""

  errors = (OSError,)

  def __init__(self, workdir: str):
    self.workdir = workdir
    self._folder = pathlib.Path(workdir)
    folders = (self._folder, *self._folder.parents)
    self._made = [folder for folder in folders if not folder.exists()]
    self._folder.mkdir(parents=True, exist_ok=True)

  def numbers(self) -> list[int]:
    return _numbers(os.listdir(self._folder)) if self._folder.exists() else []

  def create(self, number: int, data: bytes) -> bool:
    try:
      with self._path(number).open('xb') as file:
        file.write(data)
    except FileExistsError:
      return False
    return True

  def read(self, number: int) -> tuple[bytes, Any] | None:
    try:
      # Opened, since a host may remember an older time of a shared file.
      with self._path(number).open('rb') as file:
        stamp = os.fstat(file.fileno()).st_mtime_ns
        return file.read(_MAX_BYTES), stamp
    except FileNotFoundError:
      return None

  def age_s(self, stamp: Any) -> float | None:
    # The disk's clock may not be this host's: it is asked what time it is.
    with tempfile.TemporaryFile(dir=self._folder) as probe:
      return (os.fstat(probe.fileno()).st_mtime_ns - stamp) / 1e9

  def renew(self, number: int, data: bytes) -> None:
    del data
    # Needs no room on the disk, and the disk's clock says when.
    os.utime(self._path(number))

  def remove(self, number: int) -> None:
    self._path(number).unlink(missing_ok=True)

  def close(self) -> None:
    for folder in self._made:
      if not folder.is_dir() or any(folder.iterdir()):
        return
      folder.rmdir()

  def _path(self, number: int) -> pathlib.Path:
    return self._folder / _NAME.format(number)


class _Bucket:
  """Leases on gs://, where a renewal writes another content."""

  def __init__(self, workdir: str):
    self.workdir = workdir
    self._fs, self.errors = _bucket()

  def numbers(self) -> list[int]:
    self._fs.invalidate_cache()
    try:
      paths = self._fs.ls(self.workdir, detail=False)
    except FileNotFoundError:
      return []
    return _numbers([path.rsplit('/', 1)[-1] for path in paths])

  def create(self, number: int, data: bytes) -> bool:
    try:
      self._fs.pipe_file(self._path(number), data, mode='create')
    except FileExistsError:
      return False
    return True

  def read(self, number: int) -> tuple[bytes, Any] | None:
    self._fs.invalidate_cache()
    try:
      data = self._fs.cat_file(self._path(number))
    except FileNotFoundError:
      return None
    return data[:_MAX_BYTES], data

  def age_s(self, stamp: Any) -> float | None:
    return None

  def renew(self, number: int, data: bytes) -> None:
    self._fs.pipe_file(self._path(number), data)

  def remove(self, number: int) -> None:
    try:
      self._fs.rm_file(self._path(number))
    except FileNotFoundError:
      pass  # Another one that took it over has removed it.

  def close(self) -> None:
    """A bucket has no directories."""

  def _path(self, number: int) -> str:
    return f'{self.workdir.rstrip("/")}/{_NAME.format(number)}'


def _bucket() -> tuple[Any, tuple[type[Exception], ...]]:
  """What reaches gs://, and what it raises; the package may not be there."""
  import aiohttp
  import fsspec
  import gcsfs.retry
  import google.auth.exceptions

  errors = (
      OSError,
      aiohttp.ClientError,
      gcsfs.retry.HttpError,
      google.auth.exceptions.GoogleAuthError,
  )
  return fsspec.filesystem('gs', use_listings_cache=False), errors
