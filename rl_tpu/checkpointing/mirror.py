"""A work directory on gs://: files are written here and copied there.

What a run writes besides checkpoints is small, and some of it is appended to,
which a bucket cannot do. So it is written to a folder of this machine and
copied after each update. Checkpoints are not among it: Orbax writes them to
the bucket itself.
"""

import importlib.util
import pathlib
import tempfile
from collections.abc import Callable

from etils import epath

from rl_tpu.types import stops

REMOTE = 'gs://'
# What a run that is taken up again reads or appends to.
_CONTINUED = ('config.json', 'metrics.jsonl', 'incidents.jsonl', 'tb/*')


class Mirror:
  """The folder that a run writes to, and its copy where the user wants it.

  Attributes:
    workdir: as the user names it.
    folder: where to write; the same unless it is on gs://.
    check: called before anything is written.
  """

  def __init__(
      self,
      workdir: str,
      *,
      keeps: bool = True,
      check: Callable[[], None] = lambda: None,
  ):
    """Fetches what a used directory on gs:// is continued from.

    Args:
      workdir: as the user names it.
      keeps: False writes to a folder that goes with this object: of several
        processes that write the same, one keeps it.
      check: raises WriteFailed where this process may not write any more.

    Raises:
      ValueError: a file, a place that is not reached, or the package that
        reaches gs:// is not installed.
    """
    check_place(workdir)
    self.workdir = self.folder = workdir
    self.check = check
    self._keeps = keeps
    self._copied: dict[str, tuple[int, int]] = {}
    is_remote = workdir.startswith(REMOTE)
    if is_remote or not keeps:
      self._temporary = tempfile.TemporaryDirectory(prefix='rl_tpu_')
      self.folder = self._temporary.name
    if is_remote and keeps:
      self._fetch()

  def push(self) -> None:
    """Copies what has changed since the last call, and deletes what is gone.

    Raises:
      WriteFailed: the bucket does not take it, or another process has it.
    """
    self.check()
    if self.folder == self.workdir or not self._keeps:
      return
    try:
      self._push()
    except Exception as error:
      # Whatever its package has for a refusal, a timeout, a lost network.
      text = ' '.join(str(error).split())[:300]
      raise stops.WriteFailed(
          f'{self.workdir} could not be written: {type(error).__name__}:'
          f' {text}.'
      ) from error

  def _push(self) -> None:
    there, here = epath.Path(self.workdir), pathlib.Path(self.folder)
    found = {}
    for path in sorted(here.rglob('*')):
      if path.is_file():
        name = path.relative_to(here).as_posix()
        found[name] = _version(path)
        if found[name] != self._copied.get(name):
          (there / name).parent.mkdir(parents=True, exist_ok=True)
          (there / name).write_bytes(path.read_bytes())
    for name in self._copied.keys() - found.keys():
      (there / name).unlink(missing_ok=True)
    self._copied = found

  def _fetch(self) -> None:
    there, here = epath.Path(self.workdir), pathlib.Path(self.folder)
    # By name, which is by time for event files: they are read in that order.
    for pattern in _CONTINUED:
      for path in sorted(there.glob(pattern)):
        name = path.relative_to(there).as_posix()
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(path.read_bytes())
        self._copied[name] = _version(here / name)


def check_place(workdir: str) -> None:
  """Refuses what can be no work directory.

  Raises:
    ValueError: a file, a place that is not reached, or the package that
      reaches gs:// is not installed.
  """
  if workdir.startswith(REMOTE):
    _check_package(workdir)
  if '://' in workdir and not workdir.startswith(REMOTE):
    raise ValueError(
        f'--workdir={workdir}: name a folder of this machine or one on'
        f' {REMOTE}.'
    )
  # The nearest path that is there would have to hold the folder.
  place = pathlib.Path(workdir)
  while '://' not in workdir and not place.exists():
    place = place.parent
  if place.is_file():
    raise ValueError(
        f'--workdir={workdir}: {place} is a file; name a directory.'
    )


def _check_package(workdir: str) -> None:
  if importlib.util.find_spec('gcsfs') is None:
    raise ValueError(
        f"--workdir={workdir}: gs:// needs pip install 'rl-tpu[pod]' (from a"
        ' checkout: bash launch/setup.sh pod).'
    )


def _version(path: pathlib.Path) -> tuple[int, int]:
  stat = path.stat()
  return stat.st_mtime_ns, stat.st_size
