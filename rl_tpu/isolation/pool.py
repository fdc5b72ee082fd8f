"""Worker processes for single calls, each under a wall limit."""

import collections
from collections.abc import Sequence
from multiprocessing import connection as connection_lib
from typing import Any

from rl_tpu.isolation import errors
from rl_tpu.isolation import messages
from rl_tpu.isolation import process

Call = process.Call


class CallPool:
  """Runs functions by import path; a hung one is ended at its limit.

  A process that was ended or crashed is replaced, so its place is free for
  the next call.
  """

  def __init__(
      self,
      workers: int,
      *,
      preload: Sequence[str] = (),
      startup_s: float = process.STARTUP_S,
      memory_gib: float | None = None,
      max_bytes: int = messages.MAX_BYTES,
      pass_variables: Sequence[str] = (),
  ):
    """Starts the workers.

    Args:
      workers: processes.
      preload: modules that every worker imports at its start.
      startup_s: limit of a start, and of the imports of each call.
      memory_gib: address space of a worker; None is no limit.
      max_bytes: of an answer.
      pass_variables: names of environment variables that they are given.

    Raises:
      ValueError: no workers.
    """
    if workers < 1:
      raise ValueError(f'workers = {workers}: at least 1.')
    self._preload = tuple(preload)
    self._startup_s = startup_s
    self._memory_gib = memory_gib
    self._max_bytes = max_bytes
    self._pass_variables = tuple(pass_variables)
    self._queue: collections.deque[Call] = collections.deque()
    self._is_closed = False
    self._workers = [self._start() for _ in range(workers)]

  def submit(
      self, target: str, args: tuple[Any, ...] = (), *, timeout_s: float
  ) -> Call:
    """Queues a call.

    Args:
      target: import path of a function, `module:function`.
      args: its arguments; they and the result are what `wire` takes.
      timeout_s: wall limit, counted from the moment the function is entered.

    Raises:
      RuntimeError: the pool is closed.
    """
    if self._is_closed:
      raise RuntimeError('the pool is closed.')
    call = Call(('call', target, args), timeout_s, self._pump)
    self._queue.append(call)
    self._pump(0.0)
    return call

  def close(self) -> None:
    """Ends the workers; calls that have no answer yet fail."""
    self._is_closed = True
    for worker in self._workers:
      worker.close()
    for call in self._queue:
      call.fail(errors.WorkerCrashed('the pool was closed.'))
    self._queue.clear()

  def __enter__(self) -> 'CallPool':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def _start(self) -> process.WorkerProcess:
    return process.WorkerProcess(
        self._preload,
        self._startup_s,
        self._memory_gib,
        self._max_bytes,
        self._pass_variables,
    )

  def _pump(self, wait_s: float) -> None:
    """Moves calls along; waits up to `wait_s` for something to read."""
    wait_for(self._workers, wait_s)
    for worker in self._workers:
      worker.poll()
    if self._is_closed:
      return
    for index, worker in enumerate(self._workers):
      if not worker.is_alive:
        self._workers[index] = self._start()
    free = [w for w in self._workers if w.is_free]
    # A worker that is starting is given a call only after those that stand by.
    for worker in sorted(free, key=lambda w: not w.is_ready):
      if not self._queue:
        return
      worker.submit(self._queue.popleft())


def wait_for(
    workers: Sequence[process.WorkerProcess], wait_s: float
) -> None:
  """Returns when a worker has something to say, or after `wait_s`."""
  if wait_s > 0:
    channels = [w.channel for w in workers if w.is_alive]
    connection_lib.wait(channels, wait_s)
