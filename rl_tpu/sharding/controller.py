"""Who steers the devices: this process, several alike, or Pathways."""

import os

import jax

# How Pathways names its backend to JAX.
_PROXY = 'proxy'
PROCESSES = 'RL_TPU_PROCESSES'
PROCESS = 'RL_TPU_PROCESS'
COORDINATOR = 'RL_TPU_COORDINATOR'
AUTO = 'auto'
# A lost process is noticed after so long; all others are aborted then.
_HEARTBEAT_S = 30
_CPU_THREADS = 32


def start() -> None:
  """Joins the other processes, or Pathways, where the environment asks for it.

  Call it before any device is used; further calls change nothing.

  Raises:
    ValueError: variables that cannot work, devices that are not there,
      Pathways without its package, or processes that were not told to join.
  """
  if _PROXY in os.environ.get('JAX_PLATFORMS', '').split(','):
    try:
      import pathwaysutils
    except ModuleNotFoundError as error:
      raise ValueError(
          f'JAX_PLATFORMS={os.environ["JAX_PLATFORMS"]} asks for Pathways,'
          ' which needs the package pathwaysutils: bash launch/setup.sh pod.'
      ) from error
    pathwaysutils.initialize()
  if is_one_of_several() and not jax.distributed.is_initialized():
    # Threads of the CPU backend, which has one for each core otherwise: each
    # collective that waits for another process holds one, and they may wait for
    # different collectives of one program.
    os.environ.setdefault('NPROC', str(_CPU_THREADS))
    # It would take SIGTERM for itself, which the run has a handler for.
    jax.config.update('jax_enable_preemption_service', False)
    jax.distributed.initialize(
        **_place(), heartbeat_timeout_seconds=_HEARTBEAT_S
    )
  count = _count_processes()
  if count > 1 and not jax.distributed.is_initialized():
    raise ValueError(
        f'{count} processes share these devices: set'
        f' {PROCESSES}={AUTO} for each of them (docs/pods.md).'
    )
  if count > 1:
    # Where JAX found it; whoever ends this process has to know.
    os.environ.setdefault(PROCESS, str(jax.process_index()))


def _count_processes() -> int:
  """Of the program; it is the first to ask for devices."""
  try:
    return jax.process_count()
  except RuntimeError as error:
    if is_one_of_several():
      raise  # It may be of another process that was lost.
    asked = os.environ.get('JAX_PLATFORMS', '')
    raise ValueError(f'JAX_PLATFORMS={asked}: {error}') from error


def is_one_of_several() -> bool:
  """Whether the environment says that other processes run the same program."""
  return bool(os.environ.get(PROCESSES))


def _place() -> dict[str, str | int]:
  """Arguments of `jax.distributed.initialize`; none where JAX finds them."""
  text = os.environ[PROCESSES]
  if text == AUTO:
    return {}
  count = _number(PROCESSES, least=1, cure=f'a number, or {AUTO} on TPU hosts')
  index = _number(PROCESS, least=0, cure='a number that no other process has')
  if index >= count:
    raise ValueError(
        f'{PROCESS}={index}: of {PROCESSES}={count} the last one is'
        f' {count - 1}.'
    )
  address = os.environ.get(COORDINATOR, '')
  if not address.rpartition(':')[2].isdigit() or ':' not in address:
    raise ValueError(
        f'{COORDINATOR}={address}: it has to be HOST:PORT, where process 0 can'
        ' be reached.'
    )
  return {
      'coordinator_address': address,
      'num_processes': count,
      'process_id': index,
  }


def _number(name: str, *, least: int, cure: str) -> int:
  text = os.environ.get(name, '')
  if not text.isdigit() or int(text) < least:
    raise ValueError(f'{name}={text}: it has to be {cure}.')
  return int(text)
