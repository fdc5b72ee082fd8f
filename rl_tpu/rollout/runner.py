"""Drives many sessions over one sampler, environments and a verifier.

Nothing that a rollout contains depends on which session was answered first:
seeds belong to the rollout and turn, and the result is in the order of the
jobs.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rl_tpu.records import records
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


class Completer(Protocol):
  """The sampler as the runner sees it."""

  def submit(self, request: Any) -> None:
    """Queues a request."""

  def step(self) -> list[Any]:
    """Does a round of work; returns the completions that ended in it."""

  @property
  def busy(self) -> bool:
    """True while a request is queued or live."""


@dataclasses.dataclass
class _Live:
  """A session that has not ended."""

  job: session_lib.Job
  generator: Any
  environment: EnvironmentHandle
  waiting: Future | None = None
  waits_for: str = ''


class Runner:
  """Runs jobs to their ends."""

  def __init__(
      self,
      sampler: Completer,
      acquire: Callable[[], EnvironmentHandle | None],
      verify: Callable[[dict[str, Any]], Future],
      make_session: Callable[[session_lib.Job], session_lib.Session],
      *,
      fault_of: Callable[[BaseException, str], session_lib.Fault],
      on_end: Callable[[int, int], None] | None = None,
  ):
    """Wires the parts.

    Args:
      sampler: decodes.
      acquire: an environment, or None while all of them are taken.
      verify: starts the verifier on evidence.
      make_session: the session of a job.
      fault_of: names the cause of an exception of 'environment', 'verifier'.
      on_end: called with (ended, all) for progress.
    """
    self._sampler = sampler
    self._acquire = acquire
    self._verify = verify
    self._make_session = make_session
    self._fault_of = fault_of
    self._on_end = on_end
    self.seconds = {'sampler': 0.0, 'wait': 0.0}

  def collect(
      self, jobs: Sequence[session_lib.Job]
  ) -> list[records.Rollout]:
    """Runs every job once; the result is in the order of the jobs."""
    queue = list(range(len(jobs)))
    live: dict[int, _Live] = {}
    ended: dict[int, records.Rollout] = {}
    by_request: dict[str, int] = {}
    try:
      while queue or live:
        self._start(jobs, queue, live, ended, by_request)
        moved = self._answer_futures(live, ended, by_request)
        if self._sampler.busy:
          start = time.perf_counter()
          completions = self._sampler.step()
          self.seconds['sampler'] += time.perf_counter() - start
          for completion in completions:
            index = by_request.pop(completion.request_id)
            self._advance(index, completion, live, ended, by_request)
        elif not moved and live:
          start = time.perf_counter()
          time.sleep(0.0005)
          self.seconds['wait'] += time.perf_counter() - start
    finally:
      for state in live.values():
        state.environment.release()
    return [ended[i] for i in range(len(jobs))]

  def _start(self, jobs, queue, live, ended, by_request) -> None:
    while queue:
      environment = self._acquire()
      if environment is None:
        return
      index = queue.pop(0)
      generator = self._make_session(jobs[index]).run()
      live[index] = _Live(jobs[index], generator, environment)
      self._advance(index, None, live, ended, by_request)

  def _answer_futures(self, live, ended, by_request) -> bool:
    moved = False
    for index in sorted(live):
      state = live.get(index)
      if state is None or state.waiting is None or not state.waiting.done():
        continue
      self._advance_with(index, state.waiting, live, ended, by_request)
      moved = True
    return moved

  def _advance_with(self, index, future, live, ended, by_request) -> None:
    state = live[index]
    state.waiting = None
    try:
      answer = future.result()
    except Exception as error:  # pylint: disable=broad-except
      # Whatever an environment or a verifier raises ends this rollout only,
      # as a counted infra_failure with the cause kept in the record.
      answer = self._fault_of(error, state.waits_for)
    self._advance(index, answer, live, ended, by_request)

  def _advance(self, index, answer, live, ended, by_request) -> None:
    """Runs a session until it waits for something that is not there yet."""
    state = live[index]
    while True:
      try:
        if isinstance(answer, session_lib.Fault):
          ask = state.generator.throw(answer)
        else:
          ask = state.generator.send(answer)
      except StopIteration as stop:
        ended[index] = stop.value
        del live[index]
        state.environment.release()
        if self._on_end:
          self._on_end(len(ended), len(ended) + len(live))
        return
      if isinstance(ask, session_lib.Sample):
        by_request[ask.request.request_id] = index
        self._sampler.submit(ask.request)
        return
      if isinstance(ask, session_lib.Verify):
        future, state.waits_for = self._verify(ask.evidence), 'verifier'
      else:
        future = state.environment.call(ask.method, ask.args)
        state.waits_for = 'environment'
      if not future.done():
        state.waiting = future
        return
      try:
        answer = future.result()
      except Exception as error:  # pylint: disable=broad-except
        answer = self._fault_of(error, state.waits_for)


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
