"""A bar of bytes, shown where a person looks on."""

from typing import Any

import rich.console
import rich.progress


class Bytes:
  """Bytes done of bytes in all, on standard error."""

  def __init__(self, text: str):
    """Args: what is done with the bytes, in one word."""
    console = rich.console.Console(stderr=True)
    self._bar = rich.progress.Progress(
        rich.progress.TextColumn('{task.description}'),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(binary_units=True),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    self._task = self._bar.add_task(text, total=None)

  def __enter__(self) -> 'Bytes':
    self._bar.start()
    return self

  def __exit__(self, *exception: Any) -> None:
    self._bar.stop()

  def show(self, done: int, total: int) -> None:
    """Moves the bar."""
    self._bar.update(self._task, completed=done, total=total)
