"""Wall seconds by phase of a run."""

import contextlib
import time
from collections.abc import Iterator


class PhaseClock:
  """Adds up seconds under names; a phase inside a phase counts once."""

  def __init__(self) -> None:
    self.total: dict[str, float] = {}
    self.step: dict[str, float] = {}
    self._stack: list[list] = []

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Times a block; time of inner phases is not in the outer one."""
    start = time.perf_counter()
    self._stack.append([name, 0.0])
    try:
      yield
    finally:
      spent = time.perf_counter() - start
      _, inner = self._stack.pop()
      own = spent - inner
      self.total[name] = self.total.get(name, 0.0) + own
      self.step[name] = self.step.get(name, 0.0) + own
      if self._stack:
        self._stack[-1][1] += spent

  def next_step(self) -> dict[str, float]:
    """Seconds by phase since the last call; starts the next step."""
    done, self.step = self.step, {}
    return done

  def training_s(self) -> float:
    """Seconds spent so far, evaluations left out."""
    return sum(s for name, s in self.total.items() if name != 'evaluate')
