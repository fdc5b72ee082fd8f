"""Counts programs that XLA builds, to log and test recompilations."""

from typing import Any

from jax import monitoring

_EVENT = '/jax/core/compile/backend_compile_duration'


class CompileCounter:
  """Context manager that counts built programs of the whole process.

  A program taken from the compilation cache counts too: what is counted is
  that a new shape or function came up.

  Attributes:
    count: programs built since it was entered.
    seconds: time spent on them.
    names: the jitted function of each, in order.
  """

  def __init__(self):
    self.count = 0
    self.seconds = 0.0
    self.names: list[str] = []

  def __enter__(self) -> 'CompileCounter':
    monitoring.register_event_duration_secs_listener(self._listen)
    return self

  def __exit__(self, *exception: object) -> None:
    monitoring.unregister_event_duration_listener(self._listen)

  def _listen(self, event: str, duration: float, **details: Any) -> None:
    if event == _EVENT:
      self.count += 1
      self.seconds += duration
      self.names.append(str(details.get('fun_name', '')))


def count_compilations() -> CompileCounter:
  """A counter for a `with` statement."""
  return CompileCounter()
