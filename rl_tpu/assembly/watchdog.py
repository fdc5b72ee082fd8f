"""Ends a process whose devices do not answer."""

from collections.abc import Callable, Iterator
import contextlib
import os
import sys
import threading
import time
from types import TracebackType

# Launchers start a run again that ends with it.
RESTART = 42
# Looks within a limit.
_LOOKS = 10
_LAST_WORDS_S = 30.0


class Watchdog:
  """Watches calls from a thread of its own.

  A call to a device cannot be interrupted, and whoever waits for it does
  nothing else: the process says what hangs, and ends at once.
  """

  def __init__(
      self,
      limit_s: float | None,
      report: Callable[[str], str],
      *,
      end: Callable[[int], None] = os._exit,
  ):
    """Watches nothing before it is entered.

    Args:
      limit_s: seconds that a call may take; None is any time.
      report: what hangs -> the line that is shown.
      end: ends the process.
    """
    self._limit_s = limit_s
    self._report = report
    self._end = end
    self._call: tuple[str, float] | None = None
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._look, daemon=True)

  def __enter__(self) -> 'Watchdog':
    if self._limit_s is not None:
      self._thread.start()
    return self

  def __exit__(
      self,
      kind: type[BaseException] | None,
      error: BaseException | None,
      traceback: TracebackType | None,
  ) -> None:
    self._closed.set()
    if self._limit_s is not None:
      self._thread.join()

  @contextlib.contextmanager
  def watch(self, what: str) -> Iterator[None]:
    """Watches what is inside; `what` names it."""
    self._call = (what, time.monotonic())
    try:
      yield
    finally:
      self._call = None

  def _look(self) -> None:
    while not self._closed.wait(self._limit_s / _LOOKS):
      call = self._call
      if call is not None and time.monotonic() - call[1] > self._limit_s:
        self._tell_and_end(call[0])
        return

  def _tell_and_end(self, what: str) -> None:
    # What the report reads and writes may be far away, and hang as well.
    last = threading.Timer(_LAST_WORDS_S, self._end, [RESTART])
    last.daemon = True
    last.start()
    try:
      print(f'rl_tpu: {self._report(what)}', file=sys.stderr, flush=True)
    finally:
      last.cancel()
      # Not through exit handlers: they would wait for the devices, too.
      self._end(RESTART)
