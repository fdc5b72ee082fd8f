"""Worker processes that each host one environment at a time.

Nothing is shared between two environments that run at once, global random
generators included. A call that hangs ends its process, and with it one
rollout; the place is taken by a new process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_tpu.isolation import errors
from rl_tpu.isolation import pool
from rl_tpu.isolation import process

Call = process.Call


class RemotePool:
  """Hands out hosted environments until all places are taken.

  Attributes:
    close_faults: environments whose `close` raised, hung or crashed; their
      rollouts had ended, and are not touched by it.
  """

  def __init__(
      self,
      target: str,
      settings: Mapping[str, Any],
      *,
      workers: int = 4,
      timeout_s: float = 10.0,
      startup_s: float = process.STARTUP_S,
      close_s: float = 10.0,
      memory_gib: float | None = None,
      pass_variables: Sequence[str] = (),
  ):
    """Starts the processes.

    Args:
      target: import path of the environment's class, `module:Class`.
      settings: its keyword arguments.
      workers: processes, hence environments at once.
      timeout_s: wall limit of each method.
      startup_s: limit of a start, and of building an environment.
      close_s: limit of closing one.
      memory_gib: address space of a process; None is no limit.
      pass_variables: names of environment variables that they are given.

    Raises:
      ValueError: no workers.
    """
    if workers < 1:
      raise ValueError(f'workers = {workers}: at least 1.')
    self._target = target
    self._settings = dict(settings)
    self._timeout_s = timeout_s
    self._startup_s = startup_s
    self._close_s = close_s
    self._memory_gib = memory_gib
    self._pass_variables = tuple(pass_variables)
    self.close_faults = 0
    self._is_closed = False
    self._places = [_Place(self._start()) for _ in range(workers)]

  @property
  def free(self) -> int:
    """Places that `acquire` could hand out now."""
    self._pump(0.0)
    return sum(place.is_open for place in self._places)

  def acquire(self) -> 'Lease | None':
    """A new environment; None while every place is taken.

    Raises:
      RuntimeError: the pool is closed.
    """
    if self._is_closed:
      raise RuntimeError('the pool is closed.')
    self._pump(0.0)
    open_places = [p for p in self._places if p.is_open]
    if not open_places:
      return None
    place = min(open_places, key=lambda p: not p.worker.is_ready)
    place.is_leased = True
    return Lease(self, place)

  def close(self) -> None:
    """Ends all processes."""
    self._is_closed = True
    for place in self._places:
      place.worker.close()

  def __enter__(self) -> 'RemotePool':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def invoke(
      self, place: '_Place', method: str, args: tuple[Any, ...]
  ) -> Call:
    """Starts a method of the environment at a place; `Lease.call` uses it."""
    message = ('invoke', self._target, self._settings, method, args)
    call = Call(message, self._timeout_s, self._pump)
    if not place.worker.is_free:
      call.fail(errors.WorkerCrashed('its environment is gone or busy.'))
      return call
    place.worker.submit(call)
    self._pump(0.0)
    return call

  def give_back(self, place: '_Place') -> None:
    """Closes the environment at a place; `Lease.release` uses it."""
    if self._is_closed:
      return
    place.worker.poll()
    if place.worker.is_free:
      place.closing = Call(('release',), self._close_s, self._pump)
      place.worker.submit(place.closing)
    else:
      place.worker.kill()
    place.is_leased = False
    self._pump(0.0)

  def _start(self) -> process.WorkerProcess:
    module = self._target.partition(':')[0]
    return process.WorkerProcess(
        (module,),
        self._startup_s,
        self._memory_gib,
        pass_variables=self._pass_variables,
    )

  def _pump(self, wait_s: float) -> None:
    pool.wait_for([p.worker for p in self._places], wait_s)
    for place in self._places:
      place.worker.poll()
      if place.closing is not None and place.closing.error is not None:
        self.close_faults += 1
        place.closing = None
      # A place keeps its dead process until its lease ends, so that later
      # calls of that lease fail instead of reaching a fresh environment.
      replace = not place.worker.is_alive and not place.is_leased
      if replace and not self._is_closed:
        place.worker = self._start()


class _Place:
  """A process and whether it is handed out."""

  def __init__(self, worker: process.WorkerProcess):
    self.worker = worker
    self.is_leased = False
    self.closing: Call | None = None

  @property
  def is_open(self) -> bool:
    return not self.is_leased and self.worker.is_free


class Lease:
  """One environment in a process of its own, for one rollout."""

  def __init__(self, owner: RemotePool, place: _Place):
    self._owner = owner
    self._place: _Place | None = place

  def call(self, method: str, args: tuple[Any, ...] = ()) -> Call:
    """Starts a method; the one before has to be answered.

    Raises:
      RuntimeError: the lease was given back.
    """
    if self._place is None:
      raise RuntimeError('the environment was given back.')
    return self._owner.invoke(self._place, method, args)

  def release(self) -> None:
    """Gives the place back; a process that is busy is ended."""
    place, self._place = self._place, None
    if place is not None:
      self._owner.give_back(place)
