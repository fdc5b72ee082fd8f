"""The program of a worker process: answers calls that come over a socket.

Started by `isolation.process` as `python -m rl_tpu.isolation.worker`. It
imports nothing of jax, so it starts in a fraction of a second.
"""

import importlib
import os
import resource
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from rl_tpu.config import loading
from rl_tpu.isolation import errors
from rl_tpu.isolation import messages


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


def serve(channel: messages.Channel, preload: list[str]) -> None:
  """Answers messages until the other end is closed."""
  try:
    for name in preload:
      importlib.import_module(name)
  except BaseException as error:  # pylint: disable=broad-except
    channel.send(_failure(error))
    return
  channel.send(('ready',))
  host = _Host()
  while True:
    try:
      message = channel.wait()
    except (EOFError, OSError):
      return
    answer = _answer(host, message, channel)
    try:
      channel.send(answer)
    except OSError:
      return
    except (TypeError, ValueError) as error:
      # What the user's code returned is nothing that can be sent.
      channel.send(_failure(error))


def _answer(
    host: _Host, message: tuple[Any, ...], channel: messages.Channel
) -> tuple[Any, ...]:
  """What a message is answered with."""
  try:
    work = host.prepare(message)
    channel.send(('started',))
    return 'value', work()
  except BaseException as error:  # pylint: disable=broad-except
    # User code may raise anything, SystemExit too; the caller is told.
    return _failure(error)


def _failure(error: BaseException) -> tuple[Any, ...]:
  trace = ''.join(traceback.format_exception(error, limit=-6))
  parts = type(error).__name__, str(error)[:2000], trace[-4000:]
  return 'error', *map(_sendable, parts), errors.cause_of(error)


def _sendable(text: str) -> str:
  """A text without halves of surrogate pairs, which no message holds."""
  return text.encode('utf-8', 'backslashreplace').decode('utf-8')


def _end_with_parent(life: int) -> None:
  """Ends this process once the parent's end of the pipe is closed."""
  while os.read(life, 1):
    pass
  os._exit(1)


def main(argv: list[str]) -> None:
  """Args: descriptors of socket and life line, bytes, modules to import."""
  ends, life, memory = (int(word) for word in argv[:3])
  if memory:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
  threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
  serve(messages.Channel(socket.socket(fileno=ends)), argv[3:])


if __name__ == '__main__':
  main(sys.argv[1:])
