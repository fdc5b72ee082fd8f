"""Drives many sessions over one sampler, environments and a verifier.

Nothing that a rollout contains depends on which session was answered first:
seeds belong to the rollout and turn, and the result is in the order of the
jobs. With several processes each of them runs all sessions and takes the same
decisions; environments and verifiers are divided, and their answers exchanged.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rl_tpu.records import records
from rl_tpu.rollout import desk as desk_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.sharding import hosts as hosts_lib
from rl_tpu.types import stops
from rl_tpu.types import termination as term


class SamplerFault(Exception):
  """The sampler failed as a whole; what it was answering is lost (O6)."""


class Completer(Protocol):
  """The sampler as the runner sees it."""

  def submit(self, request: Any) -> None:
    """Queues a request."""

  def step(self) -> list[Any]:
    """Does a round of work; returns the completions that ended in it."""

  @property
  def busy(self) -> bool:
    """True while a request is queued or live."""


class Exchange:
  """What the processes tell each other between two rounds of the sampler."""

  def __init__(
      self,
      hosts: hosts_lib.Hosts,
      *,
      digest: Callable[[], bytes] | None = None,
      check_every: int = 0,
      stop: Callable[[], bool] = lambda: False,
  ):
    """Binds the processes.

    Args:
      hosts: the processes.
      digest: of the state that decisions are taken from.
      check_every: calls of `share` between two comparisons of it; 0 is off.
      stop: True asks all processes to leave the collection.
    """
    self._hosts = hosts
    self._stop = stop
    self._digest = digest
    self._check_every = check_every
    self._shared = 0
    self._now = 0.0

  def owned(self, jobs: int) -> range:
    """Indices of the jobs whose environments are at this process."""
    return range(self._hosts.index, jobs, self._hosts.count)

  def share(self, events: list[desk_lib.Event]) -> list[desk_lib.Event]:
    """The events of all processes, by job; called by all of them.

    Raises:
      Interrupted: a stop was asked for, at any process.
      RuntimeError: the processes are in different states.
    """
    if self._check_every and self._shared % self._check_every == 0:
      self._hosts.check_equal(
          f"the sampler's state at exchange {self._shared} of this collection",
          self._digest(),
      )
    self._shared += 1
    told = self._hosts.exchange((events, time.time(), self._stop()))
    if any(stop for _, _, stop in told):
      raise stops.Interrupted
    self._now = told[0][1]
    return sorted(
        (event for events, _, _ in told for event in events),
        key=lambda event: event.job,
    )

  def now(self) -> float:
    """Seconds since the epoch, the same at every process."""
    return time.time() if self._hosts.count == 1 else self._now


class Runner:
  """Runs jobs to their ends."""

  def __init__(
      self,
      sampler: Completer,
      acquire: Callable[[], desk_lib.EnvironmentHandle | None],
      verify: Callable[[dict[str, Any]], desk_lib.Future],
      make_session: Callable[[session_lib.Job], session_lib.Session],
      *,
      exchange: Exchange = Exchange(hosts_lib.ALONE),
      start_retries: int = 0,
      watch: Callable[
          [str], contextlib.AbstractContextManager
      ] = contextlib.nullcontext,
      on_end: Callable[[int, int], None] | None = None,
  ):
    """Wires the parts.

    Args:
      sampler: decodes.
      acquire: an environment, or None while all of them are taken.
      verify: starts the verifier on evidence.
      make_session: the session of a job.
      exchange: between the processes.
      start_retries: fresh environments that a job whose start fails is given.
      watch: entered, with its name, for what waits for the devices.
      on_end: called with (ended, all) for progress.
    """
    self._sampler = sampler
    self._acquire = acquire
    self._verify = verify
    self._make_session = make_session
    self._exchange = exchange
    self._start_retries = start_retries
    self._watch = watch
    self._on_end = on_end
    self.seconds = {'sampler': 0.0, 'wait': 0.0}

  def collect(
      self, jobs: Sequence[session_lib.Job]
  ) -> list[records.Rollout]:
    """Runs every job once; the result is in the order of the jobs.

    Raises:
      SamplerFault: the sampler raised, or owes completions and is idle.
      Interrupted: a stop was asked for.
    """
    desk = desk_lib.Desk(
        self._exchange.owned(len(jobs)),
        acquire=self._acquire,
        verify=self._verify,
        fault_of=desk_lib.fault_of,
        start_retries=self._start_retries,
    )
    collection = _Collection(jobs, desk, self._sampler, self._make_session)
    reported = 0
    try:
      while len(collection.ended) < len(jobs):
        moved = self._listen(desk, collection)
        if self._sampler.busy:
          for completion in self._decode():
            collection.complete(completion)
        elif collection.waits_for_sampler:
          raise SamplerFault('it is idle and owes every live rollout an answer')
        elif not moved:
          start = time.perf_counter()
          time.sleep(0.0005)
          self.seconds['wait'] += time.perf_counter() - start
        if self._on_end and len(collection.ended) > reported:
          reported = len(collection.ended)
          self._on_end(reported, len(jobs))
    finally:
      desk.close()
    return [collection.ended[i] for i in range(len(jobs))]

  def _decode(self) -> list[Any]:
    """One round of the sampler."""
    start = time.perf_counter()
    try:
      with self._watch('a round of the sampler'):
        return self._sampler.step()
    except Exception as error:  # pylint: disable=broad-except
      raise SamplerFault(f'{type(error).__name__}: {error}') from error
    finally:
      self.seconds['sampler'] += time.perf_counter() - start

  def _listen(self, desk: desk_lib.Desk, collection: '_Collection') -> bool:
    """Takes events in until there are none; True if there was one."""
    moved = False
    # An answer may lead to a question that is answered at once.
    while events := self._exchange.share(desk.poll()):
      for event in events:
        collection.take(event)
      moved = True
    return moved


class _Collection:
  """Sessions that are under way, and the rollouts of those that have ended."""

  def __init__(self, jobs, desk, sampler, make_session):
    self.ended: dict[int, records.Rollout] = {}
    self._jobs = jobs
    self._desk = desk
    self._sampler = sampler
    self._make_session = make_session
    self._live: dict[int, Any] = {}
    self._by_request: dict[str, int] = {}
    self._retries: dict[int, int] = {}

  @property
  def waits_for_sampler(self) -> bool:
    """True where no environment and no verifier is asked anything."""
    return 0 < len(self._live) == len(self._by_request)

  def take(self, event: desk_lib.Event) -> None:
    """Starts a session, or goes on with an answer."""
    if event.job not in self._live:
      self._live[event.job] = self._make_session(self._jobs[event.job]).run()
    if event.retries:
      self._retries[event.job] = event.retries
    answer = event.answer
    if event.fault is not None:
      answer = session_lib.Fault(*event.fault)
    self._advance(event.job, answer)

  def complete(self, completion: Any) -> None:
    """Goes on with what was sampled."""
    job = self._by_request.pop(completion.request_id, None)
    if job is None:
      raise SamplerFault(f'it answered {completion.request_id}, not asked for')
    self._advance(job, completion)

  def _advance(self, job: int, answer: Any) -> None:
    session = self._live[job]
    try:
      if isinstance(answer, session_lib.Fault):
        ask = session.throw(answer)
      else:
        ask = session.send(answer)
    except StopIteration as stop:
      self.ended[job] = _with_retries(stop.value, self._retries.get(job, 0))
      del self._live[job]
      self._desk.release(job)
      return
    if isinstance(ask, session_lib.Sample):
      self._submit(job, ask.request)
    else:
      self._desk.ask(job, ask)

  def _submit(self, job: int, request: Any) -> None:
    try:
      self._sampler.submit(request)
    except ValueError as error:
      # A request that it does not take is of one rollout.
      fault = session_lib.Fault(term.FaultCause.SAMPLER, f'sampler: {error}')
      self._advance(job, fault)
      return
    self._by_request[request.request_id] = job


def _with_retries(rollout: records.Rollout, retries: int) -> records.Rollout:
  """The record with the starts that failed before its own (A5)."""
  if not retries:
    return rollout
  counters = rollout.counters | {'start_retries': float(retries)}
  return dataclasses.replace(rollout, counters=counters)
