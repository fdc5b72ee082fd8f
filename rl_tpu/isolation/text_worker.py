"""A function of texts from strangers, in one warm process under limits.

For chat templates: code that a model folder brings. The caller names the
function, as it is of another room.
"""

from collections.abc import Mapping
from typing import Any

from rl_tpu.isolation import errors
from rl_tpu.isolation import pool
from rl_tpu.types import termination as term

# The interpreter and the libraries of templates alone take some 0.2 of it.
MEMORY_GIB = 1.0
MAX_BYTES = 1 << 24


class Refused(ValueError):
  """The template itself refuses what it was given (`raise_exception`)."""


class Failed(ValueError):
  """An error inside the template, or one that cannot be used."""


class LimitExceeded(Failed):
  """It took more time, memory or output than it may; the process was ended."""


class TextWorker:
  """Calls one function, one call after the other.

  The process that was ended at a limit is replaced by a new one.
  """

  def __init__(
      self,
      target: str,
      *,
      timeout_s: float = 5.0,
      memory_gib: float = MEMORY_GIB,
      max_bytes: int = MAX_BYTES,
  ):
    """Starts the process.

    Args:
      target: import path of `function(text, context)`, which returns
        (kind, text) with kind one of text, refused and failed.
      timeout_s: wall limit of a call.
      memory_gib: address space of the process.
      max_bytes: of an answer.
    """
    self._target = target
    self._timeout_s = timeout_s
    self._memory_gib = memory_gib
    self._max_bytes = max_bytes
    self._pool = pool.CallPool(
        1,
        preload=(target.partition(':')[0],),
        memory_gib=memory_gib,
        max_bytes=max_bytes,
    )

  def render(self, text: str, context: Mapping[str, Any]) -> str:
    """What the function makes of a template and what it is given.

    Args:
      text: the template.
      context: JSON values by name.

    Raises:
      Refused: by the template.
      LimitExceeded: of time, memory or output.
      Failed: an error inside the template.
    """
    args = (text, dict(context))
    call = self._pool.submit(self._target, args, timeout_s=self._timeout_s)
    try:
      answer = call.result()
    except errors.WorkerTimeout as error:
      raise LimitExceeded(f'it took more than {self._timeout_s:g} s') from error
    except errors.WorkerError as error:
      raise self._failure(error) from error
    match answer:
      case ('text', str(made)):
        return made
      case ('refused', str(why)):
        raise Refused(why)
      case ('failed', str(why)):
        raise Failed(why)
    raise Failed('the process that renders it answered what is no text')

  def close(self) -> None:
    """Ends the process."""
    self._pool.close()

  def _failure(self, error: errors.WorkerError) -> Failed:
    if error.fault_cause == term.FaultCause.MEMORY:
      return LimitExceeded(f'it took more than {self._memory_gib:g} GiB')
    if isinstance(error, errors.AnswerTooLong):
      return LimitExceeded(f'it wrote more than {self._max_bytes} bytes')
    return Failed(str(error).partition('\n')[0][:300])
