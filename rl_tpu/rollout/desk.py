"""Environments and verifiers, asked by sessions and answered in their time.

A job's environment and verifier run at one process, its owner. What becomes
known there (an environment is free, an answer has come) is an event, and the
sessions go on by events alone: they can run at every process alike.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rl_tpu.isolation import errors
from rl_tpu.rollout import answers
from rl_tpu.rollout import session as session_lib
from rl_tpu.types import termination as term

# The one method that may be tried again: nothing has been sampled before it.
_START = 'reset'


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
    retries: starts that failed before this answer to one.
  """

  job: int
  answer: Any = None
  fault: tuple[term.FaultCause, str] | None = None
  retries: int = 0


class Desk:
  """The environments and the verifier of this process's jobs."""

  def __init__(
      self,
      jobs: Iterable[int],
      *,
      acquire: Callable[[], EnvironmentHandle | None],
      verify: Callable[[dict[str, Any]], Future],
      fault_of: Callable[[BaseException, str], session_lib.Fault],
      start_retries: int = 0,
  ):
    """Starts with no environment; the rest is as in `runner.Runner`.

    Args:
      jobs: indices that this process owns, in the order of their start.
      acquire: an environment, or None while all of them are taken.
      verify: starts the verifier on evidence.
      fault_of: names the cause of an exception of 'environment', 'verifier'.
      start_retries: fresh environments that a job whose start fails is given.
    """
    self._jobs = frozenset(jobs := tuple(jobs))
    self._queue = collections.deque(jobs)
    self._acquire = acquire
    self._verify = verify
    self._fault_of = fault_of
    self._start_retries = start_retries
    self._environments: dict[int, EnvironmentHandle] = {}
    self._asked: dict[int, tuple[Future, session_lib.Ask]] = {}
    self._failed_starts: dict[int, int] = {}
    self._again: dict[int, session_lib.Ask] = {}

  def poll(self) -> list[Event]:
    """What has become known since the last call."""
    events = []
    while self._queue:
      environment = self._acquire()
      if environment is None:
        break
      job = self._queue.popleft()
      self._environments[job] = environment
      if job in self._again:
        self.ask(job, self._again.pop(job))
      else:
        events.append(Event(job))
    for job, (future, ask) in list(self._asked.items()):
      if future.done():
        del self._asked[job]
        events += self._answers(job, future, ask)
    return events

  def _answers(
      self, job: int, future: Future, ask: session_lib.Ask
  ) -> list[Event]:
    """The answer as an event; none where a failed start is tried again."""
    is_score = isinstance(ask, session_lib.Verify)
    is_start = not is_score and ask.method == _START
    retries = self._failed_starts.pop(job, 0) if is_start else 0
    try:
      answer = future.result()
      if is_score:
        answers.check_score(answer)
      else:
        answers.check(ask.method, answer)
      return [Event(job, answer, retries=retries)]
    except Exception as error:  # pylint: disable=broad-except
      # Whatever an environment or a verifier raises ends this rollout only,
      # as a counted infra_failure with the cause kept in the record.
      if is_start and retries < self._start_retries:
        self._failed_starts[job], self._again[job] = retries + 1, ask
        self.release(job)
        self._queue.append(job)
        return []
      fault = self._fault_of(error, 'verifier' if is_score else 'environment')
      return [Event(job, fault=(fault.cause, str(fault)), retries=retries)]

  def ask(self, job: int, ask: session_lib.Call | session_lib.Verify) -> None:
    """Starts what a session asks for, if its job is of this process."""
    if job not in self._jobs:
      return
    try:
      if isinstance(ask, session_lib.Verify):
        future = self._verify(ask.evidence)
      else:
        future = self._environments[job].call(ask.method, ask.args)
    except Exception as error:  # pylint: disable=broad-except
      future = _Done(None, error)  # As if it were the answer.
    self._asked[job] = future, ask

  def release(self, job: int) -> None:
    """Gives the environment of a job back, if it is of this process."""
    if environment := self._environments.pop(job, None):
      environment.release()

  def close(self) -> None:
    """Gives all environments back."""
    for job in list(self._environments):
      self.release(job)


class InlinePool:
  """Environments of this process, which never block; as many as are asked for.

  Attributes:
    close_faults: environments whose `close` raised; their rollouts had ended,
      and are not touched by it.
  """

  def __init__(self, make: Callable[[], Any]):
    """Args: builds an environment; it may fail as a call may."""
    self._make = make
    self.close_faults = 0

  def acquire(self) -> 'InlineEnvironment':
    """A new environment."""
    return InlineEnvironment(self._make, self._on_close_fault)

  def close(self) -> None:
    """There is nothing to end."""

  def _on_close_fault(self) -> None:
    self.close_faults += 1


class InlineEnvironment:
  """An environment of this process, behind the handle that remote ones have."""

  def __init__(
      self,
      make: Callable[[], Any],
      on_close_fault: Callable[[], None] = lambda: None,
  ):
    """Builds nothing before the first call.

    Args:
      make: builds an environment that never blocks.
      on_close_fault: called where its `close` raises.
    """
    self._make = make
    self._on_close_fault = on_close_fault
    self._environment: Any = None

  def call(self, method: str, args: tuple[Any, ...]) -> Future:
    """Runs the method at once."""
    try:
      if self._environment is None:
        self._environment = self._make()
      return _Done(getattr(self._environment, method)(*args), None)
    except Exception as error:  # pylint: disable=broad-except
      return _Done(None, error)

  def release(self) -> None:
    """Closes it; a fresh one serves the next rollout."""
    if self._environment is None:
      return
    try:
      self._environment.close()
    except Exception:  # pylint: disable=broad-except
      # The rollout is over: it is counted, and nothing else depends on it.
      self._on_close_fault()


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
  cause = getattr(error, 'fault_cause', None) or errors.cause_of(error)
  if cause is None:
    kind = term.FaultCause
    cause = kind.VERIFIER if where == 'verifier' else kind.ENVIRONMENT
  text = f'{where}: {type(error).__name__}: {error}'
  return session_lib.Fault(cause, text[:500])
