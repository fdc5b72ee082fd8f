"""Messages between a worker and its parent, read without waiting for the rest.

A worker that stops in the middle of an answer, or says what is no answer,
must not hold up whoever reads: what has come is kept until it is whole.
"""

import socket
import struct
from typing import Any

from multiprocessing import connection as connection_lib

from rl_tpu.isolation import wire

_LENGTH = struct.Struct('!Q')
# A longer answer is no answer: it would fill the memory of the run.
MAX_BYTES = 1 << 26
_CHUNK = 1 << 20


class TooLong(ValueError):
  """A message of more bytes than are taken."""


class Channel:
  """One end of a socket that carries values (`wire`) behind their lengths."""

  def __init__(self, end: socket.socket, max_bytes: int = MAX_BYTES):
    """Takes the socket over; longer messages than that are none."""
    self._socket = end
    self._max_bytes = max_bytes
    self._socket.setblocking(False)
    self._data = bytearray()

  def fileno(self) -> int:
    """Descriptor; readable when `receive` has something to do."""
    return self._socket.fileno()

  def send(self, message: Any, timeout_s: float | None = None) -> None:
    """Sends one message.

    Raises:
      OSError: the other end is gone, or did not take it in time.
      TypeError, ValueError: it cannot be written; nothing is sent.
    """
    data = wire.packed(message)
    if len(data) > MAX_BYTES:
      raise ValueError(f'it has {len(data)} bytes, and {MAX_BYTES} are taken.')
    self._socket.settimeout(timeout_s)
    try:
      self._socket.sendall(_LENGTH.pack(len(data)) + data)
    finally:
      self._socket.setblocking(False)

  def receive(self) -> Any:
    """The next message; None while none is whole.

    Raises:
      EOFError: the other end is gone, and every whole message was read.
      OSError: so it is.
      ValueError: what came is no message, or one that is too long.
    """
    while (data := self._whole()) is None:
      try:
        chunk = self._socket.recv(_CHUNK)
      except BlockingIOError:
        return None
      if not chunk:
        raise EOFError
      self._data += chunk
    try:
      return wire.unpacked(data)
    except ValueError as error:
      raise ValueError(
          f'it could not be read: {type(error).__name__}: {str(error):.300}'
      ) from error

  def wait(self) -> Any:
    """The next message; waits for it. Raises as `receive`."""
    while (message := self.receive()) is None:
      connection_lib.wait([self._socket])
    return message

  def close(self) -> None:
    """Closes this end."""
    self._socket.close()

  def _whole(self) -> bytes | None:
    if len(self._data) < _LENGTH.size:
      return None
    (length,) = _LENGTH.unpack_from(self._data)
    if length > self._max_bytes:
      raise TooLong(f'it has {length} bytes, and {self._max_bytes} are taken.')
    stop = _LENGTH.size + length
    if len(self._data) < stop:
      return None
    data = bytes(self._data[_LENGTH.size : stop])
    del self._data[:stop]
    return data
