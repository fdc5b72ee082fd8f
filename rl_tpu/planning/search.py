"""Other settings of an experiment: what would fit, and what is cheapest."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.planning import plan as plan_lib

AXES = ('mesh', 'remat', 'microbatch')
_SAMPLING = ('prefill', 'decode')

# Plans an experiment with some of its programs.
Planner = Callable[[schema.ExperimentConfig, Callable[[str], bool]], plan_lib.Plan]


@dataclasses.dataclass(frozen=True)
class Advice:
  """What one change of a setting does to a program that does not fit.

  Attributes:
    program: its name.
    change: path=value, as for --set.
    saved_bytes: by which the total falls; negative where it grows.
    fits: whether that is enough.
  """

  program: str
  change: str
  saved_bytes: int
  fits: bool


def advise(
    config: schema.ExperimentConfig, made: plan_lib.Plan, planner: Planner
) -> list[Advice]:
  """Tries single changes on the programs that do not fit, the best first."""
  found = []
  for row in made.rows:
    if row.fits:
      continue
    for change in _changes(config, row.name, made):
      try:
        other = planner(
            overrides.apply(config, change.split()),
            lambda name, wanted=row.name: name == wanted,
        )
      except ValueError:
        continue  # The experiment cannot be changed so.
      new = other.rows[0]
      saved = row.total_bytes - new.total_bytes
      found.append(Advice(row.name, change, saved, new.fits))
  return sorted(found, key=lambda a: (a.program, not a.fits, -a.saved_bytes))


def _changes(config, program: str, made: plan_lib.Plan) -> Iterator[str]:
  fsdp, tensor = made.mesh['fsdp'], made.mesh['tensor']
  data = made.mesh['data']
  if program in _SAMPLING:
    yield f'sampler.slots={config.sampler.slots // 2}'
    yield f'sampler.prefill_rows={max(1, config.sampler.prefill_rows // 2)}'
  elif program.endswith('gradient'):
    if config.model.remat != 'layer':
      yield 'model.remat=layer'
    half = config.batching.rows_per_microbatch // 2
    yield f'batching.rows_per_microbatch={half}'
    yield f'model.logits_chunk={config.model.logits_chunk // 2}'
  if fsdp % 2 == 0:
    yield f'mesh.fsdp={fsdp // 2} mesh.tensor={tensor * 2}'
  if data % 2 == 0:
    yield f'mesh.data={data // 2} mesh.fsdp={fsdp * 2}'


def sweep(
    config: schema.ExperimentConfig,
    axes: Sequence[str],
    devices: int,
    slices: int = 1,
) -> list[tuple[str, ...]]:
  """Combinations of changes to plan, as paths=values.

  Args:
    config: the experiment.
    axes: of AXES.
    devices: of the topology.
    slices: that the axis data has to hold.

  Raises:
    ValueError: another axis.
  """
  for axis in axes:
    if axis not in AXES:
      raise ValueError(f'--sweep={axis}: one of {", ".join(AXES)}.')
  choices = [[()]]
  if 'mesh' in axes:
    choices.append(list(_meshes(devices, slices)))
  if 'remat' in axes:
    kinds = ('none', 'attention', 'layer')
    choices.append([(f'model.remat={kind}',) for kind in kinds])
  if 'microbatch' in axes:
    rows = config.batching.rows_per_microbatch
    sizes = sorted({max(1, rows // 2), rows, rows * 2})
    choices.append([(f'batching.rows_per_microbatch={n}',) for n in sizes])
  return [sum(parts, ()) for parts in itertools.product(*choices)]


def _meshes(devices: int, slices: int) -> Iterator[tuple[str, ...]]:
  """Powers of two on the tensor axis, the rest on fsdp, slices on data."""
  tensor = 1
  while tensor <= min(8, devices // slices):
    fsdp = devices // slices // tensor
    yield (
        f'mesh.data={slices}',
        f'mesh.fsdp={fsdp}',
        f'mesh.tensor={tensor}',
        'mesh.expert=1',
    )
    tensor *= 2
