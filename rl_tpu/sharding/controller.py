"""Who steers the devices: this process alone, or Pathways for it."""

import os

import jax

# How Pathways names its backend to JAX.
_PROXY = 'proxy'


def start() -> None:
  """Connects to Pathways where the environment asks for it.

  Call it before any device is used.

  Raises:
    ValueError: Pathways without its package, or devices of several processes.
  """
  if _PROXY in os.environ.get('JAX_PLATFORMS', '').split(','):
    try:
      import pathwaysutils
    except ModuleNotFoundError as error:
      raise ValueError(
          f'JAX_PLATFORMS={os.environ["JAX_PLATFORMS"]} asks for Pathways, which'
          ' needs the package pathwaysutils: bash launch/setup.sh pod.'
      ) from error
    pathwaysutils.initialize()
  if jax.process_count() > 1:
    raise ValueError(
        f'{jax.process_count()} processes: this version runs on one host, or'
        ' on several through Pathways (docs/pods.md).'
    )
