"""TPU devices that are not there, for programs to be compiled for."""

from collections.abc import Sequence
import importlib.util
import os

import jax
from jax.experimental import topologies

from rl_tpu.sharding import chips

# libtpu asks the machine that it is on what TPU it has, and locks the only
# one; none of that is wanted here.
ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
# Both cores of a v4 chip are one device to JAX; libtpu assumes two.
_CHIP_CONFIG = {'v4': 'megacore'}


def describe(
    name: str, slices: int = 1
) -> tuple[chips.Chip, Sequence[jax.Device]]:
  """The chip and the devices of a topology.

  Args:
    name: chip and extent in chips, for example v5e:8x8 or v5p:4x4x4.
    slices: that are joined over the data-centre network.

  Raises:
    ValueError: another chip, an extent that the compiler refuses, or no
      compiler.
  """
  kind, _, extent = name.partition(':')
  if kind not in chips.CHIPS or not extent:
    known = ', '.join(chips.CHIPS)
    raise ValueError(
        f'--topology={name}: name a chip of {known} and its extent, for example'
        ' v5e:8x8 or v5p:4x4x4.'
    )
  if slices < 1:
    raise ValueError(f'--slices={slices}: at least 1.')
  for key, value in ENVIRONMENT.items():
    os.environ.setdefault(key, value)
  # What is compiled for a chip cannot be read back without one.
  jax.config.update('jax_enable_compilation_cache', False)
  if importlib.util.find_spec('libtpu') is None:
    raise ValueError(
        'plan needs the TPU compiler: bash launch/setup.sh tpu (or pip install'
        ' libtpu).'
    )
  settings = {'num_slices': slices} if slices > 1 else {}
  if kind in _CHIP_CONFIG:
    settings['chip_config_name'] = _CHIP_CONFIG[kind]
  try:
    found = topologies.get_topology_desc(name, platform='tpu', **settings)
  except jax.errors.JaxRuntimeError as error:
    message = str(error).splitlines()[0]
    raise ValueError(f'--topology={name}: {message}') from error
  return chips.CHIPS[kind], found.devices
