"""Checks of worker processes, their limits, and of what a run bears."""

from rl_tpu.config import checks
from rl_tpu.config import schema


def check(config: schema.ExperimentConfig) -> None:
  """Refuses limits that cannot work.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  _check_environment(config.environment)
  verifier = config.verifier
  checks.at_least('verifier.workers', verifier.workers, 1)
  checks.positive('verifier.start_timeout_s', verifier.start_timeout_s)
  checks.positive('verifier.timeout_s', verifier.timeout_s)
  checks.positive('verifier.memory_gib', verifier.memory_gib, optional=True)
  faults = config.faults
  checks.within('faults.max_share', faults.max_share, 0, 1)
  checks.at_least('faults.sampler_restarts', faults.sampler_restarts, 0)
  checks.at_least('faults.max_skipped', faults.max_skipped, 1)
  checks.positive('faults.device_wall_s', faults.device_wall_s, optional=True)
  for name in ('max_bias', 'max_ece'):
    checks.positive(f'resume.{name}', getattr(config.resume, name))


def _check_environment(environment: schema.EnvironmentConfig) -> None:
  checks.one_of(
      'environment.isolation', environment.isolation, 'inline', 'process'
  )
  checks.at_least('environment.workers', environment.workers, 1)
  for name in ('start_timeout_s', 'step_timeout_s', 'close_timeout_s'):
    checks.positive(f'environment.{name}', getattr(environment, name))
  checks.at_least('environment.start_retries', environment.start_retries, 0)
  memory = environment.memory_gib
  checks.positive('environment.memory_gib', memory, optional=True)
  checks.require(
      memory is None or environment.isolation == 'process',
      'environment.memory_gib',
      memory,
      'an environment of this process has its memory; set'
      ' environment.isolation=process, or leave it out',
  )
