"""A device trace of some updates, for xprof."""

import os

import jax

from rl_tpu.config import schema

FOLDER = 'profile'


class Profiler:
  """Traces the updates `log.profile_first` to `log.profile_last`."""

  def __init__(self, config: schema.LogConfig, workdir: str):
    """Args: the settings, and the run's directory, which gets the trace."""
    self._first = config.profile_first
    self._last = config.profile_last
    self._folder = os.path.join(workdir, FOLDER)
    self._is_tracing = False

  def begin(self, update: int) -> None:
    """Called before each update; traces it, or ends the trace before it."""
    if self._first <= update <= self._last:
      if not self._is_tracing:
        jax.profiler.start_trace(self._folder)
        self._is_tracing = True
    else:
      self.close()

  def close(self) -> None:
    """Writes the trace, if one is being taken."""
    if self._is_tracing:
      self._is_tracing = False
      jax.profiler.stop_trace()
