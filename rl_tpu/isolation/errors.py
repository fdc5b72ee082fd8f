"""What can go wrong with work in another process."""

from rl_tpu.types import termination as term


class WorkerError(Exception):
  """No answer came.

  Attributes:
    fault_cause: for the record of the rollout; None leaves it to the caller,
      who knows whether an environment or a verifier was asked.
  """

  fault_cause: term.FaultCause | None = None


class WorkerTimeout(WorkerError, TimeoutError):
  """The wall limit was reached; the process was ended."""

  fault_cause = term.FaultCause.TIMEOUT


class WorkerCrashed(WorkerError):
  """The process ended without an answer, or could not start."""


class CallFailed(WorkerError):
  """The code in the worker raised; the message holds its traceback."""

  def __init__(self, error_type: str, message: str, trace: str):
    """Args: class name, message and traceback of the remote exception."""
    super().__init__(f'{error_type}: {message}\n{trace}'.rstrip())
    self.error_type = error_type
    self.message = message
    if error_type == 'MemoryError':
      self.fault_cause = term.FaultCause.MEMORY
