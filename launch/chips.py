"""TPU accelerator types: what a name such as v5p-32 stands for."""

import dataclasses
import difflib
import math
import re

CHIPS_PER_HOST = 4

_FLAT = ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBIC = (
    '2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8',
    '8x8x16', '8x16x16',
)


@dataclasses.dataclass(frozen=True)
class Generation:
  """One generation of TPU.

  Attributes:
    name: as libtpu and `plan` write it.
    prefix: of its accelerator types.
    per_chip: what the number of a type counts, for each chip: TensorCores, or
      the chips themselves.
    devices_per_chip: JAX devices of a chip.
    gke_accelerator: value of the node label
      cloud.google.com/gke-tpu-accelerator.
    vm_runtime: software version of its TPU VMs; None where there are none.
    topologies: sizes of a slice, smallest first.
  """

  name: str
  prefix: str
  per_chip: int
  devices_per_chip: int
  gke_accelerator: str
  vm_runtime: str | None
  topologies: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips that are joined by their own network.

  Attributes:
    generation: of the chips.
    topology: their arrangement, such as 2x2x4.
  """

  generation: Generation
  topology: str

  @property
  def chips(self) -> int:
    return math.prod(int(side) for side in self.topology.split('x'))

  @property
  def devices(self) -> int:
    """JAX devices."""
    return self.chips * self.generation.devices_per_chip

  @property
  def hosts(self) -> int:
    """Machines, with four chips each."""
    return self.chips // CHIPS_PER_HOST

  @property
  def accelerator_type(self) -> str:
    number = self.chips * self.generation.per_chip
    return f'{self.generation.prefix}-{number}'

  @property
  def plan_topology(self) -> str:
    """The same for `python -m rl_tpu plan --topology`."""
    return f'{self.generation.name}:{self.topology}'


# Topologies and labels: cloud.google.com/kubernetes-engine/docs/concepts/
# plan-tpus; runtimes: cloud.google.com/tpu/docs/runtimes, which also says that
# the API of TPU VMs does not serve TPU7x.
GENERATIONS = (
    Generation(
        name='v4',
        prefix='v4',
        per_chip=2,
        devices_per_chip=1,
        gke_accelerator='tpu-v4-podslice',
        vm_runtime='tpu-ubuntu2204-base',
        topologies=_CUBIC,
    ),
    Generation(
        name='v5e',
        prefix='v5litepod',
        per_chip=1,
        devices_per_chip=1,
        gke_accelerator='tpu-v5-lite-podslice',
        vm_runtime='v2-alpha-tpuv5-lite',
        topologies=_FLAT,
    ),
    Generation(
        name='v5p',
        prefix='v5p',
        per_chip=2,
        devices_per_chip=1,
        gke_accelerator='tpu-v5p-slice',
        vm_runtime='v2-alpha-tpuv5',
        topologies=_CUBIC + ('16x16x16', '16x16x24'),
    ),
    Generation(
        name='v6e',
        prefix='v6e',
        per_chip=1,
        devices_per_chip=1,
        gke_accelerator='tpu-v6e-slice',
        vm_runtime='v2-alpha-tpuv6e',
        topologies=_FLAT,
    ),
    Generation(
        name='tpu7x',
        prefix='tpu7x',
        per_chip=2,
        devices_per_chip=2,
        gke_accelerator='tpu7x',
        vm_runtime=None,
        topologies=_CUBIC + ('16x16x16',),
    ),
)
SLICES = {
    part.accelerator_type: part
    for generation in GENERATIONS
    for part in (Slice(generation, t) for t in generation.topologies)
}


def find(accelerator_type: str) -> Slice:
  """The slice of an accelerator type.

  Raises:
    ValueError: there is none of that name; the nearest ones are named.
  """
  found = SLICES.get(accelerator_type)
  if found is None:
    near = ', '.join(_near(accelerator_type))
    raise ValueError(
        f'--tpu-type={accelerator_type}: no such accelerator type; near it:'
        f' {near}.'
    )
  return found


def _near(wrong: str) -> list[str]:
  """Types that may have been meant: of the same generation, of that size."""
  word, _, size = re.sub('[:_]', '-', wrong).partition('-')
  own = [
      (name, part)
      for name, part in SLICES.items()
      if word in (part.generation.name, part.generation.prefix)
  ]
  if not own:
    return difflib.get_close_matches(wrong, SLICES, n=3, cutoff=0.0)
  same = [name for name, part in own if part.topology == size]
  if same or not size.isdigit():
    return same or [name for name, _ in own]
  distance = lambda name: abs(int(name.rsplit('-', 1)[1]) - int(size))
  return sorted((name for name, _ in own), key=distance)[:2]
