"""Environments and verifiers, asked by sessions and answered in their time.

A job's environment and verifier run at one process, its owner. What becomes
known there (an environment is free, an answer has come) is an event, and the
sessions go on by events alone: they can run at every process alike.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rl_tpu.rollout import session as session_lib
from rl_tpu.types import termination as term


class Future(Protocol):
  """An answer that is on its way."""

  def done(self) -> bool:
    """True once `result` returns at once."""

  def result(self) -> Any:
    """The answer; raises what went wrong."""


class EnvironmentHandle(Protocol):
  """An environment that may live in another process."""

  def call(self, method: str, args: tuple[Any, ...]) -> Future:
    """Starts a method."""

  def release(self) -> None:
    """Gives the environment back."""


@dataclasses.dataclass(frozen=True)
class Event:
  """What a session waited for.

  Attributes:
    job: its index.
    answer: of the environment or the verifier; None at the start.
    fault: (cause, detail) of what went wrong instead.
  """

  job: int
  answer: Any = None
  fault: tuple[term.FaultCause, str] | None = None


class Desk:
  """The environments and the verifier of this process's jobs."""

  def __init__(
      self,
      jobs: Iterable[int],
      *,
      acquire: Callable[[], EnvironmentHandle | None],
      verify: Callable[[dict[str, Any]], Future],
      fault_of: Callable[[BaseException, str], session_lib.Fault],
  ):
    """Starts with no environment; the rest is as in `runner.Runner`.

    Args:
      jobs: indices that this process owns, in the order of their start.
      acquire: an environment, or None while all of them are taken.
      verify: starts the verifier on evidence.
      fault_of: names the cause of an exception of 'environment', 'verifier'.
    """
    self._jobs = frozenset(jobs := tuple(jobs))
    self._queue = collections.deque(jobs)
    self._acquire = acquire
    self._verify = verify
    self._fault_of = fault_of
    self._environments: dict[int, EnvironmentHandle] = {}
    self._asked: dict[int, tuple[Future, str]] = {}

  def poll(self) -> list[Event]:
    """What has become known since the last call."""
    events = []
    while self._queue:
      environment = self._acquire()
      if environment is None:
        break
      job = self._queue.popleft()
      self._environments[job] = environment
      events.append(Event(job))
    for job, (future, where) in list(self._asked.items()):
      if future.done():
        del self._asked[job]
        events.append(self._answer(job, future, where))
    return events

  def _answer(self, job: int, future: Future, where: str) -> Event:
    try:
      return Event(job, future.result())
    except Exception as error:  # pylint: disable=broad-except
      # Whatever an environment or a verifier raises ends this rollout only,
      # as a counted infra_failure with the cause kept in the record.
      fault = self._fault_of(error, where)
      return Event(job, fault=(fault.cause, str(fault)))

  def ask(self, job: int, ask: session_lib.Call | session_lib.Verify) -> None:
    """Starts what a session asks for, if its job is of this process."""
    if job not in self._jobs:
      return
    if isinstance(ask, session_lib.Verify):
      self._asked[job] = self._verify(ask.evidence), 'verifier'
    else:
      future = self._environments[job].call(ask.method, ask.args)
      self._asked[job] = future, 'environment'

  def release(self, job: int) -> None:
    """Gives the environment of a job back, if it is of this process."""
    if environment := self._environments.pop(job, None):
      environment.release()

  def close(self) -> None:
    """Gives all environments back."""
    for job in list(self._environments):
      self.release(job)


class InlineEnvironment:
  """An environment of this process, behind the handle that remote ones have."""

  def __init__(self, environment: Any):
    """Wraps an environment that never blocks."""
    self._environment = environment

  def call(self, method: str, args: tuple[Any, ...]) -> Future:
    """Runs the method at once."""
    try:
      return _Done(getattr(self._environment, method)(*args), None)
    except Exception as error:  # pylint: disable=broad-except
      return _Done(None, error)

  def release(self) -> None:
    """Closes it; a fresh one serves the next rollout."""
    self._environment.close()


@dataclasses.dataclass(frozen=True)
class _Done:
  value: Any
  error: BaseException | None

  def done(self) -> bool:
    return True

  def result(self) -> Any:
    if self.error is not None:
      raise self.error
    return self.value


def fault_of(error: BaseException, where: str) -> session_lib.Fault:
  """Names the cause of an environment's or a verifier's exception."""
  cause = getattr(error, 'fault_cause', None)
  if cause is None:
    kind = term.FaultCause
    cause = kind.VERIFIER if where == 'verifier' else kind.ENVIRONMENT
    if isinstance(error, TimeoutError):
      cause = kind.TIMEOUT
    elif isinstance(error, MemoryError):
      cause = kind.MEMORY
  text = f'{where}: {type(error).__name__}: {error}'
  return session_lib.Fault(cause, text[:500])
