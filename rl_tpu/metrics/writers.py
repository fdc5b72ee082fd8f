"""Where figures go: TensorBoard event files and `metrics.jsonl`.

Steps are update numbers, from 1; an evaluation carries the step of the update
it follows, 0 before the first. A run that resumes at step n removes what its
predecessor wrote after n, and puts back what the file has lost of the lines
before it (K37). Writers hold files and threads until they are closed (K38): use
them in a `with` statement.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np
import tensorboardX

from rl_tpu.metrics import event_files
from rl_tpu.metrics import lines as lines_lib
from rl_tpu.metrics import tags

Number = float | int | None

_counter = itertools.count()


class Writer(Protocol):
  """A sink of figures."""

  def scalars(self, step: int, values: Mapping[str, Number]) -> None:
    """Writes one point per tag; None means undefined (C3) and is no point."""

  def histogram(self, step: int, tag: str, values: Any) -> None:
    """Writes the distribution of an array."""

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Writes a Markdown text."""

  def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
    """Writes a picture, uint8 [height, width, 3]."""

  def flush(self) -> None:
    """Makes what was written readable by other processes."""

  def close(self) -> None:
    """Flushes and gives files and threads back."""


class TensorBoardWriter:
  """Event files in one folder, with the 'RL health' layout."""

  def __init__(
      self,
      folder: str | os.PathLike[str],
      *,
      resume_step: int | None = None,
      flush_s: int = 5,
  ):
    """Opens the folder.

    Args:
      folder: where event files go; made if absent.
      resume_step: last step that counts of those already there; None keeps
        everything.
      flush_s: a point is readable by other processes after so many seconds.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if resume_step is not None:
      event_files.drop_after(folder, resume_step)
    # The library names files by host and second: the suffix keeps a second
    # writer of the same second from truncating the first one's file.
    suffix = f'.{os.getpid()}.{next(_counter)}.{time.time_ns() % 10**9:09d}'
    self._writer = tensorboardX.SummaryWriter(
        str(folder),
        purge_step=None if resume_step is None else resume_step + 1,
        flush_secs=flush_s,
        filename_suffix=suffix,
    )
    self._file = self._bear_failures()
    self._writer.add_custom_scalars(tags.HEALTH_LAYOUT)
    # The library would warn of every point that is not finite. The run names
    # such numbers where they come from, once.
    logging.getLogger('tensorboardX.x2num').setLevel(logging.ERROR)

  def __enter__(self) -> 'TensorBoardWriter':
    return self

  def __exit__(self, *exception: Any) -> None:
    self.close()

  def _bear_failures(self) -> '_EventFile':
    """Puts a file that fails without an exception below the library.

    Its thread would end with the exception, and whoever gives it the next
    points would wait for it for ever.
    """
    # pylint: disable-next=protected-access
    recorder = self._writer.file_writer.event_writer._ev_writer
    recorder = recorder._py_recordio_writer  # pylint: disable=protected-access
    recorder._writer = _EventFile(recorder._writer)
    return recorder._writer

  def scalars(self, step: int, values: Mapping[str, Number]) -> None:
    """Writes one point per tag that has a value.

    Raises:
      OSError: earlier points could not be written.
    """
    self._file.check()
    for tag, value in values.items():
      if value is not None:
        self._writer.add_scalar(tag, float(value), step)

  def histogram(self, step: int, tag: str, values: Any) -> None:
    """Writes the distribution of the finite entries of an array."""
    array = np.asarray(values, np.float64).ravel()
    array = array[np.isfinite(array)]
    if array.size:
      self._writer.add_histogram(tag, array, step, bins=64)

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Writes a Markdown text."""
    self._writer.add_text(tag, markdown, step)

  def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
    """Writes a picture, uint8 [height, width, 3]."""
    self._writer.add_image(tag, pixels, step, dataformats='HWC')

  def flush(self) -> None:
    """Flushes what the library's thread has taken from its queue."""
    self._writer.flush()

  def close(self) -> None:
    """Ends the library's thread and closes the file.

    Raises:
      OSError: points could not be written.
    """
    self._writer.close()
    self._file.check()


class _EventFile:
  """A file that keeps what went wrong, and writes nothing from then on."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self._error: OSError | None = None

  def write(self, data: bytes) -> None:
    self._try(lambda: self._file.write(data))

  def flush(self) -> None:
    self._try(self._flush)

  def _flush(self) -> None:
    self._file.flush()
    os.fsync(self._file.fileno())

  def close(self) -> None:
    self._try(self._flush)
    with contextlib.suppress(OSError):  # What it could not flush.
      self._file.close()

  def check(self) -> None:
    """Raises what went wrong."""
    if self._error is not None:
      raise self._error

  def _try(self, act: Callable[[], Any]) -> None:
    if self._error is None:
      try:
        act()
      except OSError as error:
        self._error = error


class JsonlWriter:
  """One JSON object a call: `step`, `time` and the tags given."""

  def __init__(
      self,
      path: str | os.PathLike[str],
      *,
      resume_step: int | None = None,
      kept: Sequence[Mapping[str, Any]] = (),
  ):
    """Opens the file.

    Args:
      path: of the file; its folder is made if absent.
      resume_step: last step that counts of those already there; None keeps
        everything.
      kept: the last lines up to that step, as `tail` gave them; what of them
        the file has lost comes back.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    self._tail: list[Mapping[str, Any]] = []
    if resume_step is not None:
      self._tail = lines_lib.tail(lines_lib.take_up(path, resume_step, kept))
    self._file = path.open('a', encoding='utf-8')

  def __enter__(self) -> 'JsonlWriter':
    return self

  def __exit__(self, *exception: Any) -> None:
    self.close()

  def scalars(self, step: int, values: Mapping[str, Number]) -> None:
    """Appends one line; an undefined or non-finite figure is null."""
    line: dict[str, Any] = {'step': int(step), 'time': round(time.time(), 3)}
    for tag, value in values.items():
      is_number = value is not None and math.isfinite(value)
      line[tag] = _plain(value) if is_number else None
    self._file.write(json.dumps(line, allow_nan=False) + '\n')
    self._file.flush()
    self._tail = lines_lib.tail([*self._tail, line])

  @property
  def tail(self) -> list[Mapping[str, Any]]:
    """The lines of the last updates, for a checkpoint."""
    return self._tail

  def histogram(self, step: int, tag: str, values: Any) -> None:
    """Nothing: distributions stay in TensorBoard."""

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Nothing: transcripts are in rollouts/."""

  def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
    """Nothing: pictures stay in TensorBoard."""

  def flush(self) -> None:
    """Every line is flushed as it is written."""
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def _plain(value: Any) -> int | float:
  return int(value) if isinstance(value, (int, np.integer)) else float(value)


class Writers:
  """Several sinks as one."""

  def __init__(
      self, sinks: Sequence[Writer], *, lines: JsonlWriter | None = None
  ):
    """Takes over the sinks and closes them.

    Args:
      sinks: get all that is written.
      lines: of these, the one that has a tail.
    """
    self._sinks = tuple(sinks)
    self._lines = lines

  @property
  def tail(self) -> list[Mapping[str, Any]]:
    """The last lines of `metrics.jsonl`, for a checkpoint."""
    return self._lines.tail if self._lines else []

  def __enter__(self) -> 'Writers':
    return self

  def __exit__(self, *exception: Any) -> None:
    self.close()

  def scalars(self, step: int, values: Mapping[str, Number]) -> None:
    """Passes the figures on."""
    for sink in self._sinks:
      sink.scalars(step, values)

  def histogram(self, step: int, tag: str, values: Any) -> None:
    """Passes the distribution on."""
    for sink in self._sinks:
      sink.histogram(step, tag, values)

  def text(self, step: int, tag: str, markdown: str) -> None:
    """Passes the text on."""
    for sink in self._sinks:
      sink.text(step, tag, markdown)

  def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
    """Passes the picture on."""
    for sink in self._sinks:
      sink.image(step, tag, pixels)

  def flush(self) -> None:
    """Flushes every sink."""
    for sink in self._sinks:
      sink.flush()

  def close(self) -> None:
    """Closes every sink, also when one of them fails to."""
    with contextlib.ExitStack() as stack:
      for sink in self._sinks:
        stack.callback(sink.close)


def open_run(
    workdir: str | os.PathLike[str],
    *,
    resume_step: int | None = None,
    kept: Sequence[Mapping[str, Any]] = (),
) -> Writers:
  """The sinks of a work directory: `tb/` and `metrics.jsonl`.

  Args:
    workdir: the run's directory.
    resume_step: the checkpoint's step when the run goes on; None at a start.
    kept: the last lines of `metrics.jsonl` that the checkpoint holds.
  """
  workdir = pathlib.Path(workdir)
  lines = JsonlWriter(
      workdir / 'metrics.jsonl', resume_step=resume_step, kept=kept
  )
  try:
    board = TensorBoardWriter(workdir / 'tb', resume_step=resume_step)
  except BaseException:
    lines.close()
    raise
  return Writers((lines, board), lines=lines)


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """The lines of a `metrics.jsonl`; a torn last line is left out."""
  lines = []
  with open(path, encoding='utf-8') as file:
    for line in file:
      if line.endswith('\n'):
        lines.append(json.loads(line))
  return lines
