"""What can go wrong with work in another process, and its cause."""

from rl_tpu.types import termination as term

# By name, since the libraries that raise them are the user's: requests, httpx,
# urllib and subprocess have classes of their own.
_CAUSES = {
    'MemoryError': term.FaultCause.MEMORY,
    'TimeoutError': term.FaultCause.TIMEOUT,
    'Timeout': term.FaultCause.TIMEOUT,
    'TimeoutException': term.FaultCause.TIMEOUT,
    'TimeoutExpired': term.FaultCause.TIMEOUT,
    'ConnectionError': term.FaultCause.NETWORK,
    'ConnectError': term.FaultCause.NETWORK,
    'NetworkError': term.FaultCause.NETWORK,
    'URLError': term.FaultCause.NETWORK,
    'gaierror': term.FaultCause.NETWORK,
}


def cause_of(error: BaseException) -> term.FaultCause | None:
  """The cause that an exception's class tells; None where it tells none."""
  for kind in type(error).__mro__:
    if kind.__name__ in _CAUSES:
      return _CAUSES[kind.__name__]
  return None


class WorkerError(Exception):
  """No answer came.

  Attributes:
    fault_cause: for the record of the rollout; None leaves it to the caller,
      who knows whether an environment or a verifier was asked.
  """

  fault_cause: term.FaultCause | None = None


class WorkerTimeout(WorkerError, TimeoutError):
  """A wall limit was reached; the process was ended."""

  fault_cause = term.FaultCause.TIMEOUT


class WorkerCrashed(WorkerError):
  """The process ended without an answer, or could not start."""

  def __init__(
      self, message: str, fault_cause: term.FaultCause | None = None
  ):
    """Args: what is known, and the cause where it tells one."""
    super().__init__(message)
    self.fault_cause = fault_cause


class AnswerTooLong(WorkerCrashed):
  """The answer has more bytes than are taken; the process was ended."""


class CallFailed(WorkerError):
  """The code in the worker raised; the message holds its traceback."""

  def __init__(
      self,
      error_type: str,
      message: str,
      trace: str,
      fault_cause: term.FaultCause | None = None,
  ):
    """Args: class name, message, traceback and cause of the exception."""
    super().__init__(f'{error_type}: {message}\n{trace}'.rstrip())
    self.error_type = error_type
    self.message = message
    self.fault_cause = fault_cause
