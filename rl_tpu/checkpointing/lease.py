"""Who works in a work directory: a lease that its holder renews.

The lease is a small file in the directory, `lease-<number>.json`. It is taken
by creating the next number, which a disk, a disk of several hosts and a bucket
all let one taker do and no more. Whoever has the highest number holds the
directory. A lease that is not renewed for a minute is dead; on the machine of
its holder it is dead as soon as that process is.
"""

import dataclasses
import datetime
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from absl import logging

from rl_tpu.checkpointing import lease_files
from rl_tpu.checkpointing import machine
from rl_tpu.types import stops


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds between renewals, until a lease is dead, and between two looks."""

  renew_s: float = 10.0
  dead_s: float = 60.0
  look_s: float = 1.0


TIMING = Timing()


@dataclasses.dataclass(frozen=True)
class _Found:
  """A lease that was read.

  Attributes:
    number: of its file.
    stamp: changes whenever the holder renews it.
    holder: what the holder wrote; empty where it could not be read.
  """

  number: int
  stamp: Any
  holder: dict[str, Any]

  def who(self) -> str:
    """Process, host and since when, for a line."""
    told = {n: self.holder.get(n, '?') for n in ('pid', 'host', 'since')}
    return 'process {pid} on {host} since {since}'.format(**told)


class Lease:
  """A held work directory."""

  def __init__(
      self,
      files: lease_files.Files,
      number: int,
      holder: dict[str, Any],
      timing: Timing,
  ):
    """Begins to renew; `take` makes the file."""
    self._files, self._number, self._timing = files, number, timing
    self._holder = holder
    self._lock = threading.Lock()
    self._released = threading.Event()
    self._lost: str | None = None
    self._renewed_at = machine.clock()
    # A daemon: a run that ends keeps nobody waiting.
    threading.Thread(target=self._keep, name='lease', daemon=True).start()

  def check(self) -> None:
    """Called before the run writes; free unless a renewal is overdue.

    Raises:
      WriteFailed: another process has the directory, or the lease could not
        be renewed for as long as it lives.
    """
    waited = machine.clock() - self._renewed_at
    trouble = None
    if self._lost is None and waited > 2 * self._timing.renew_s:
      # This process slept, or the thread cannot write.
      trouble = self._renew()
    if self._lost is None and trouble and waited > self._timing.dead_s:
      self._lost = (
          f'its lease could not be renewed for {waited:.0f} s: {trouble}'
      )
    if self._lost is not None:
      raise stops.WriteFailed(
          f'--workdir={self._files.workdir}: {self._lost}; this run writes no'
          ' more.'
      )

  def release(self) -> None:
    """Gives the directory free; what another has taken stays."""
    self._released.set()
    # A renewal may hang in a lost network: it goes with the process.
    if not self._lock.acquire(timeout=self._timing.renew_s):
      return
    try:
      if self._lost is None and self._is_own():
        self._files.remove(self._number)
      self._files.close()
    except self._files.errors as error:
      logging.warning(
          'the lease of %s was not given back: %s', self._files.workdir, error
      )
    finally:
      self._lock.release()

  def _keep(self) -> None:
    while not self._released.wait(self._timing.renew_s):
      if self._lost is not None:
        return
      if trouble := self._renew():
        logging.warning(
            'the lease of %s could not be renewed: %s',
            self._files.workdir,
            trouble,
        )

  def _renew(self) -> str | None:
    """Renews, or notes the loss; returns what went wrong with the files."""
    with self._lock:
      if self._released.is_set():
        return None
      try:
        if not self._is_own():
          taker = _latest(self._files)
          self._lost = (
              f'taken over by {taker.who()} while this process did not answer'
              if taker is not None
              else 'its lease is gone: another process took it, or it was'
              ' deleted'
          )
          return None
        renewals = self._holder['renewals'] + 1
        self._holder = {**self._holder, 'renewals': renewals}
        self._files.renew(self._number, _dump(self._holder))
      except self._files.errors as error:
        return f'{type(error).__name__}: {error}'
      self._renewed_at = machine.clock()
    return None

  def _is_own(self) -> bool:
    found = _latest(self._files)
    return (
        found is not None
        and found.number == self._number
        and found.holder.get('token') == self._holder['token']
    )


def take(
    workdir: str,
    *,
    timing: Timing = TIMING,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease:
  """Takes a work directory for this process.

  A lease whose holder cannot be seen from here is watched until it is renewed
  or has not been for `timing.dead_s`.

  Args:
    workdir: as the user names it; made if it is not there.
    timing: seconds of the lease.
    sleep: waits.

  Returns:
    The lease, to be released.

  Raises:
    ValueError: another process works in it. One line.
  """
  files = lease_files.of(workdir)
  try:
    before = _free(files, timing, sleep)
    return _create(files, before, timing)
  except BaseException:
    files.close()
    raise


def _free(
    files: lease_files.Files, timing: Timing, sleep: Callable[[float], None]
) -> _Found | None:
  """The dead lease in the directory; None without any.

  No clocks of two hosts are compared: the file system's own times are, where
  it has them, and else the time in which nothing was seen to change.
  """
  began, first = machine.clock(), _latest(files)
  found = first
  while found is not None:
    state = machine.state_of(found.holder)
    is_first = (found.number, found.stamp) == (first.number, first.stamp)
    if state == machine.ALIVE or not is_first:
      raise _in_use(files, found)
    unchanged = max(files.age_s(found.stamp) or 0.0, machine.clock() - began)
    if state == machine.DEAD or unchanged > timing.dead_s:
      break
    if found is first:
      logging.warning(
          '%s: held by %s; waiting up to %.0f s to see whether it is renewed.',
          files.workdir,
          found.who(),
          timing.dead_s - unchanged,
      )
    sleep(timing.look_s)
    found = _latest(files)
  return found


def _create(
    files: lease_files.Files, before: _Found | None, timing: Timing
) -> Lease:
  """Creates the next number: of several takers, one can.

  Raises:
    ValueError: it was another one.
  """
  number = before.number + 1 if before is not None else 1
  holder = {
      **machine.here(),
      'since': datetime.datetime.now(datetime.timezone.utc).strftime(
          '%Y-%m-%d %H:%M:%S UTC'
      ),
      'token': uuid.uuid4().hex,
      'renewals': 0,
  }
  known = set(files.numbers())
  if not files.create(number, _dump(holder)):
    found = _latest(files)
    # A bucket's client that tries again may find what it has just written.
    if found is None or found.holder.get('token') != holder['token']:
      raise _in_use(files, found)
  # Who looked before an earlier holder was gone may have created another one.
  others = set(files.numbers()) - known - {number}
  if others or any(n > number for n in known):
    files.remove(number)
    raise _in_use(files, _latest(files))
  if before is not None:
    logging.warning(
        '%s: the lease of %s is dead; taken over by process %d on %s.',
        files.workdir,
        before.who(),
        holder['pid'],
        holder['host'],
    )
  for old in known:
    files.remove(old)
  return Lease(files, number, holder, timing)


def _in_use(files: lease_files.Files, found: _Found | None) -> ValueError:
  who = found.who() if found is not None else 'another process'
  return ValueError(
      f'--workdir={files.workdir}: in use by {who}; choose another directory,'
      ' or end that process first.'
  )


def _latest(files: lease_files.Files) -> _Found | None:
  """The lease with the highest number; None without any."""
  while numbers := files.numbers():
    number = max(numbers)
    read = files.read(number)
    if read is not None:
      data, stamp = read
      return _Found(number, stamp, _parsed(data))
    # Released between the two looks.
  return None


def _parsed(data: bytes) -> dict[str, Any]:
  """What the holder wrote; empty for what is no lease or not whole yet."""
  try:
    holder = json.loads(data)
  except ValueError:
    return {}
  if not isinstance(holder, dict):
    return {}
  # It is shown on a terminal, and whoever can write there wrote it.
  return {
      name: ascii(value)[1:-1][:100] if isinstance(value, str) else value
      for name, value in holder.items()
      if isinstance(value, str | int)
  }


def _dump(holder: dict[str, Any]) -> bytes:
  return json.dumps(holder).encode()
