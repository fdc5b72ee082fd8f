"""The sampler of a run: what it serves, and its restart where it fails (O6)."""

from collections.abc import Callable
from typing import Any, TypeVar

from absl import logging

from rl_tpu.config import schema
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.sharding import hosts as hosts_lib
from rl_tpu.types import stops

T = TypeVar('T')


class Serving:
  """Publishes weights and collects, over restarts of the sampler.

  Attributes:
    restarts: of this run, resumes included.
  """

  def __init__(
      self,
      sampler: Any,
      config: schema.FaultsConfig,
      hosts: hosts_lib.Hosts,
  ):
    """Args: the sampler, how often it may be restarted, the processes."""
    self._sampler = sampler
    self._config = config
    self._hosts = hosts
    self._left = config.sampler_restarts
    self.restarts = 0

  def begin(self) -> None:
    """An update begins: so many restarts are left again."""
    self._left = self._config.sampler_restarts

  def publish(self, version: int, params: Any, mode: str) -> None:
    """Pushes weights as a version; the sampler serves it afterwards.

    Args:
      version: of the policy.
      params: the actor's.
      mode: sampler.sync.

    Raises:
      RunStopped: the sampler does not serve it, restarted or not.
    """
    while True:
      try:
        self._sampler.update_weights(version, params, mode)
        return self._check(version)
      except Exception as error:  # pylint: disable=broad-except
        self._restart(error)

  def collect(
      self, collect: Callable[[], T], *, version: int, params: Any
  ) -> T:
    """Collects; anew after a restart, with the same seeds and environments.

    Args:
      collect: runs all jobs from their start.
      version: that the sampler has to serve.
      params: the actor's, of this version.

    Raises:
      RunStopped: the sampler is dead or stale, restarted or not.
    """
    while True:
      try:
        self._check(version)
        return collect()
      except runner_lib.SamplerFault as fault:
        self._restart(fault)
        self.publish(version, params, 'drain')

  def _check(self, version: int) -> None:
    served = self._sampler.version
    if served != version:
      raise runner_lib.SamplerFault(
          f'version {version} was pushed, but the sampler serves {served} (O6)'
      )

  def _restart(self, error: Exception) -> None:
    """Drops what the sampler holds, or stops the run."""
    if self._hosts.count > 1:
      # One process alone cannot tell whether the others failed as well: all of
      # them leave, and the run is started again.
      raise error.__cause__ or error
    if not self._left:
      raise stops.RunStopped(
          f'the sampler failed: {error}, after'
          f' {self._config.sampler_restarts} restarts in this update'
          ' (faults.sampler_restarts).'
      ) from error
    self._left -= 1
    self.restarts += 1
    logging.error(
        'the sampler failed: %s; it is restarted and gets the weights again.',
        error,
    )
    self._sampler.reset()
