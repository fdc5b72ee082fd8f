"""What may change when a used work directory is taken up again (O7)."""

import json
import os
from typing import Any

from rl_tpu.config import loading
from rl_tpu.config import schema

# How long to go on.
_LENGTH = ('steps', 'time_limit_s', 'token_limit')
# What is borne of failing parts: none of these changes what a rollout that does
# not fail contains.
_LIMITS = (
    'environment.workers', 'environment.start_timeout_s',
    'environment.step_timeout_s', 'environment.close_timeout_s',
    'environment.start_retries', 'environment.memory_gib', 'verifier.workers',
    'verifier.start_timeout_s', 'verifier.timeout_s', 'verifier.memory_gib',
)
# Where it runs, what is kept and looked at, and when it stops.
_PLACES = (
    'mesh.', 'memory.', 'sampler.devices', 'sampler.publish',
    'sampler.check_every', 'checkpoint.', 'log.', 'faults.', 'resume.',
    'alignment.',
)


def check(
    workdir: str,
    config: schema.ExperimentConfig,
    *,
    folder: str,
    override: bool = False,
) -> dict[str, tuple[Any, Any]] | None:
  """Compares the settings of a used work directory with those of this run.

  Args:
    workdir: as the user names it.
    config: of this run.
    folder: where its files are.
    override: settings that change results may be other ones.

  Returns:
    (before, now) of the settings that are other ones now and may change
    results, by name, empty unless `override`; None for a fresh directory.

  Raises:
    ValueError: it belongs to another experiment or other settings.
  """
  path = os.path.join(folder, 'config.json')
  if not os.path.exists(path):
    return None
  return compare(workdir, loading.load(path), config, override=override)


def compare_reference(
    workdir: str,
    path: str,
    before: str | None,
    now: str | None,
    *,
    override: bool = False,
) -> dict[str, tuple[Any, Any]]:
  """Compares what the model folder holds with what the run began with.

  Args:
    workdir: as the user names it.
    path: the model folder.
    before: hash of its weights in the checkpoint, where they are the reference
      or lie below adapters.
    now: the same of this start.
    override: they may be other ones.

  Returns:
    (before, now) by name, as `check` has it for settings.

  Raises:
    ValueError: they are other ones.
  """
  if None in (before, now) or before == now:
    return {}
  if not override:
    raise ValueError(
        f'--workdir={workdir}: model.path = {path} does not hold the weights'
        f' any more that this run began with (hash {before}, now {now}); put'
        ' them back, or go on with the new ones by --override_config=yes.'
    )
  return {'weights of model.path': (before, now)}


def compare(
    workdir: str,
    before: schema.ExperimentConfig,
    config: schema.ExperimentConfig,
    *,
    override: bool = False,
) -> dict[str, tuple[Any, Any]]:
  """What is other than before and may change results, as for `check`.

  Raises:
    ValueError: as for `check`.
  """
  if before.name != config.name:
    raise ValueError(
        f'--workdir={workdir}: it holds experiment {before.name!r}, not'
        f' {config.name!r}; choose another directory.'
    )
  old, new = loading.flat(before), loading.flat(config)
  changed = {
      name: (old.get(name), new.get(name))
      for name in loading.differences(before, config)
      if name not in (*_LENGTH, *_LIMITS) and not name.startswith(_PLACES)
  }
  if changed and not override:
    shown = ', '.join(
        f'{name} (before {json.dumps(left)}, now {json.dumps(right)})'
        for name, (left, right) in changed.items()
    )
    raise ValueError(
        f'--workdir={workdir}: its run was started with other settings:'
        f' {shown}; choose another directory, or go on with the new ones by'
        ' --override_config=yes.'
    )
  return changed
