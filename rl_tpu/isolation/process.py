"""One worker process and the call that it is busy with.

Nothing here waits and no thread runs: whoever holds a `Call` asks `done` or
`result`, and that moves everything along, deadlines included.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rl_tpu.isolation import errors
from rl_tpu.isolation import messages
from rl_tpu.isolation import variables
from rl_tpu.types import termination as term

# Imports and set-up of user code are not part of a call's wall limit.
STARTUP_S = 60.0
_SEND_S = 10.0
# Characters of what a worker says of an exception; an honest one cuts it.
_MAX_FAILURE = 100_000


class Call:
  """An answer that is on its way.

  Attributes:
    error: why there is none; None while it may come, and once it has.
  """

  def __init__(
      self,
      message: tuple[Any, ...],
      timeout_s: float,
      pump: Callable[[float], None],
  ):
    """Args: what the worker is sent, its limit, and what moves it along."""
    self.message = message
    self.timeout_s = timeout_s
    self._pump = pump
    self._is_done = False
    self._value: Any = None
    self.error: errors.WorkerError | None = None

  def done(self) -> bool:
    """True once `result` returns at once."""
    if not self._is_done:
      self._pump(0.0)
    return self._is_done

  def result(self) -> Any:
    """The answer; waits for it.

    Raises:
      errors.WorkerError: there is none.
    """
    while not self._is_done:
      self._pump(0.05)
    if self.error is not None:
      raise self.error
    return self._value

  def succeed(self, value: Any) -> None:
    """Gives the answer."""
    self._value, self._is_done = value, True

  def fail(self, error: errors.WorkerError) -> None:
    """Ends the call without an answer."""
    self.error, self._is_done = error, True


class WorkerProcess:
  """A process that answers one call after the other.

  Its environment variables ask jax for the CPU, so user code that imports it
  leaves the accelerator alone.
  """

  def __init__(
      self,
      preload: Sequence[str] = (),
      startup_s: float = STARTUP_S,
      memory_gib: float | None = None,
      max_bytes: int = messages.MAX_BYTES,
      pass_variables: Sequence[str] = (),
  ):
    """Starts it; `poll` finds out when it is ready.

    Args:
      preload: modules that it imports before the first call.
      startup_s: limit of the start, and of the imports of each call.
      memory_gib: address space that it may take; None is no limit.
      max_bytes: of what it says at once.
      pass_variables: names of environment variables that it is given, too.
    """
    self._startup_s = startup_s
    self._left_out = variables.left_out(pass_variables)
    self._call: Call | None = None
    self._is_ready = False
    self._is_sent = False
    self._is_started = False
    self.is_alive = True
    ours, theirs = socket.socketpair()
    self._channel = messages.Channel(ours, max_bytes)
    life, self._life = os.pipe()
    memory = 0 if memory_gib is None else int(memory_gib * 2**30)
    self._process = subprocess.Popen(
        [
            sys.executable, '-m', 'rl_tpu.isolation.worker',
            str(theirs.fileno()), str(life), str(memory), *preload,
        ],
        env=variables.given(pass_variables),
        pass_fds=(theirs.fileno(), life),
        stdin=subprocess.DEVNULL,
        stdout=2,  # What user code prints must not mix with our output.
        start_new_session=True,  # Ctrl-C is the parent's business.
    )
    theirs.close()
    os.close(life)
    self._deadline = time.monotonic() + startup_s

  @property
  def pid(self) -> int:
    """Of the process."""
    return self._process.pid

  @property
  def channel(self) -> messages.Channel:
    """Becomes readable when `poll` has something to do."""
    return self._channel

  @property
  def is_free(self) -> bool:
    """Takes a call: alive and not busy; it may be starting still."""
    return self.is_alive and self._call is None

  @property
  def is_ready(self) -> bool:
    """Has finished its start."""
    return self._is_ready

  def submit(self, call: Call) -> None:
    """Gives it a call; it has to be free."""
    self._call, self._is_sent, self._is_started = call, False, False
    self._send()

  def poll(self) -> None:
    """Reads what came, and ends the process where a limit has passed."""
    while self.is_alive:
      try:
        message = self._channel.receive()
      except (EOFError, OSError):
        self._end(self._exit())
      except messages.TooLong as error:
        self._end(errors.AnswerTooLong(f'its answer is none: {error}'))
      except ValueError as error:
        self._end(errors.WorkerCrashed(f'its answer is none: {error}'))
      else:
        if message is None:
          break
        self._receive(message)
    waiting = self._call is not None or not self._is_ready
    if self.is_alive and waiting and time.monotonic() > self._deadline:
      self._end(self._timeout())

  def kill(self) -> None:
    """Ends the process and all that it started, and fails its call."""
    self._end(errors.WorkerCrashed('the worker was ended.'))

  def close(self, wait_s: float = 1.0) -> None:
    """Lets an idle process leave by itself; ends it otherwise."""
    if self.is_alive and self._call is None and self._is_ready:
      self._channel.close()
      try:
        self._process.wait(wait_s)
      except subprocess.TimeoutExpired:
        pass  # Ended by force below.
    self.kill()

  def _send(self) -> None:
    if self._call is None or self._is_sent or not self._is_ready:
      return
    self._is_sent = True
    self._deadline = time.monotonic() + self._startup_s
    try:
      self._channel.send(self._call.message, _SEND_S)
    except OSError:
      self._end(self._exit())

  def _receive(self, message: Any) -> None:
    kind = message[0] if isinstance(message, tuple) and message else None
    parts = message[1:] if kind else ()
    is_asked = self._call is not None and self._is_sent
    if kind == 'ready' and not self._is_ready:
      self._is_ready = True
      self._send()
    elif kind == 'error' and _is_failure(parts) and not self._is_ready:
      self._end(
          errors.WorkerCrashed(
              f'it could not start: {parts[2]}{self._left_out}', parts[3]
          )
      )
    elif kind == 'started' and is_asked and not self._is_started:
      self._is_started = True
      self._deadline = time.monotonic() + self._call.timeout_s
    elif kind == 'value' and len(parts) == 1 and is_asked:
      call, self._call = self._call, None
      call.succeed(parts[0])
    elif kind == 'error' and _is_failure(parts) and is_asked:
      call, self._call = self._call, None
      call.fail(errors.CallFailed(*parts))
      if parts[3] == term.FaultCause.MEMORY:
        # Nothing in a process that ran out of memory is to be relied on.
        self.kill()
    else:
      self._end(errors.WorkerCrashed('it said what is no answer.'))

  def _timeout(self) -> errors.WorkerError:
    if self._is_ready and self._is_started:
      passed = f'no answer within {self._call.timeout_s:g} s'
    else:
      what = 'set-up of the call' if self._is_ready else 'its start'
      passed = f'{what} was not over within {self._startup_s:g} s'
    return errors.WorkerTimeout(f'{passed}; the process was ended.')

  def _exit(self) -> errors.WorkerError:
    try:
      code = self._process.wait(1.0)
    except subprocess.TimeoutExpired:
      return errors.WorkerCrashed('the process closed its socket.')
    if code == -signal.SIGKILL:
      # Nobody here did that: on Linux it is what ends the largest process of a
      # machine or container that is out of memory.
      return errors.WorkerCrashed(
          'the process was killed from outside (SIGKILL), as for want of'
          ' memory.',
          term.FaultCause.MEMORY,
      )
    told = '' if self._is_ready else self._left_out
    return errors.WorkerCrashed(f'the process ended with code {code}.{told}')

  def _end(self, error: errors.WorkerError) -> None:
    call, self._call = self._call, None
    if self.is_alive:
      self.is_alive = False
      try:
        os.killpg(self._process.pid, signal.SIGKILL)
      except ProcessLookupError:
        pass  # It has left already.
      self._process.wait()
      self._channel.close()
      os.close(self._life)
    if call is not None:
      call.fail(error)


def _is_failure(parts: tuple[Any, ...]) -> bool:
  """Class, message and traceback as texts, and a cause or none."""
  if len(parts) != 4 or not all(isinstance(p, str) for p in parts[:3]):
    return False
  is_short = sum(len(part) for part in parts[:3]) <= _MAX_FAILURE
  return is_short and (
      parts[3] is None or isinstance(parts[3], term.FaultCause)
  )
