"""The program of a worker process: answers calls that come over a pipe.

Started by `isolation.process` as `python -m rl_tpu.isolation.worker`. It
imports nothing of jax, so it starts in a fraction of a second.
"""

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection as connection_lib
from typing import Any

from rl_tpu.config import loading


class _Host:
  """Answers messages; holds at most one object between them."""

  def __init__(self):
    self._hosted: Any = None

  def prepare(self, message: tuple[Any, ...]) -> Callable[[], Any]:
    """Imports and builds what a message needs; returns the call itself.

    The wall limit of a call starts after this.
    """
    kind, *parts = message
    if kind == 'call':
      target, args = parts
      function = loading.import_target(target)
      return lambda: function(*args)
    if kind == 'invoke':
      target, settings, method, args = parts
      if self._hosted is None:
        self._hosted = loading.construct(
            target, settings, setting='environment'
        )
      return lambda: getattr(self._hosted, method)(*args)
    if kind == 'release':
      return self._release
    raise ValueError(f'unknown message {kind!r}.')

  def _release(self) -> None:
    hosted, self._hosted = self._hosted, None
    if hosted is not None:
      hosted.close()


def serve(pipe: connection_lib.Connection, preload: list[str]) -> None:
  """Answers messages until the other end closes the pipe."""
  try:
    for name in preload:
      importlib.import_module(name)
  except BaseException as error:  # pylint: disable=broad-except
    pipe.send(_failure(error))
    return
  pipe.send(('ready',))
  host = _Host()
  while True:
    try:
      message = pipe.recv()
    except EOFError:
      return
    try:
      work = host.prepare(message)
      pipe.send(('started',))
      pipe.send(('value', work()))
    except (BrokenPipeError, ConnectionResetError):
      return
    except BaseException as error:  # pylint: disable=broad-except
      # User code may raise anything, SystemExit too; the caller is told.
      pipe.send(_failure(error))


def _failure(error: BaseException) -> tuple[str, str, str, str]:
  trace = ''.join(traceback.format_exception(error, limit=-6))
  return ('error', type(error).__name__, str(error)[:2000], trace[-4000:])


def _end_with_parent(life: int) -> None:
  """Ends this process once the parent's end of the pipe is closed."""
  while os.read(life, 1):
    pass
  os._exit(1)


def main(argv: list[str]) -> None:
  """Args: descriptor of the pipe, of the life line, modules to import."""
  life = int(argv[1])
  threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
  with connection_lib.Connection(int(argv[0])) as pipe:
    serve(pipe, argv[2:])


if __name__ == '__main__':
  main(sys.argv[1:])
