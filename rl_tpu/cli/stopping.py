"""Ctrl-C and SIGTERM: the first asks for a stop in good order."""

import signal
import sys
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopAsked:
  """Remembers a stop signal while its `with` block runs.

  The first signal is remembered and shown; the work ends at its next step,
  saved. A second Ctrl-C interrupts at once, a second SIGTERM ends the process.
  """

  def __init__(self) -> None:
    """Changes nothing yet: handlers are set on entry."""
    self.signal: int | None = None
    self._before: dict[int, object] = {}

  def __call__(self) -> bool:
    """True once a signal has come."""
    return self.signal is not None

  @property
  def exit_code(self) -> int:
    """128 + signal number, or 0."""
    return 128 + self.signal if self.signal else 0

  def __enter__(self) -> 'StopAsked':
    for number in _SIGNALS:
      self._before[number] = signal.signal(number, self._on_signal)
    return self

  def __exit__(
      self,
      kind: type[BaseException] | None,
      error: BaseException | None,
      traceback: TracebackType | None,
  ) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _on_signal(self, number: int, frame: FrameType | None) -> None:
    if self.signal is not None and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.signal = number
    if number == signal.SIGTERM:
      # The second one ends it, whatever it is waiting for by then.
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print(
        f'{signal.Signals(number).name}: saving and stopping; rollouts that are'
        ' being gathered are given up. Once more stops at once.',
        file=sys.stderr,
        flush=True,
    )
