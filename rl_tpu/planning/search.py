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
Planner = Callable[
    [schema.ExperimentConfig, Callable[[str], bool]], plan_lib.Plan
]


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


@dataclasses.dataclass(frozen=True)
class Combination:
  """Settings that a sweep plans.

  Attributes:
    mesh: paths=values of the mesh; none to leave it.
    others: paths=values of the other axes of the sweep.
    ranks: of the others, each by the memory that it needs.
  """

  mesh: tuple[str, ...]
  others: tuple[str, ...]
  ranks: tuple[int, ...]

  @property
  def changes(self) -> tuple[str, ...]:
    """All paths=values, as for --set."""
    return self.mesh + self.others

  def needs_as_much_as(self, other: 'Combination') -> bool:
    """Whether it is the other one with more held or more at a time."""
    return self.mesh == other.mesh and all(
        mine >= its for mine, its in zip(self.ranks, other.ranks)
    )


@dataclasses.dataclass(frozen=True)
class Trial:
  """What became of a combination.

  Attributes:
    changes: its settings.
    made: its plan, which ends with the first program that does not fit; None
      where it was not planned.
    reason: why it was not planned.
  """

  changes: tuple[str, ...]
  made: plan_lib.Plan | None
  reason: str = ''


def combinations(
    config: schema.ExperimentConfig,
    axes: Sequence[str],
    devices: int,
    slices: int = 1,
) -> list[Combination]:
  """What a sweep goes through; those that need less memory come first.

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
  meshes = _meshes(devices, slices) if 'mesh' in axes else [()]
  choices = []
  if 'remat' in axes:
    kinds = ('layer', 'attention', 'none')
    choices.append([f'model.remat={kind}' for kind in kinds])
  if 'microbatch' in axes:
    rows = config.batching.rows_per_microbatch
    sizes = sorted({max(1, rows // 2), rows, rows * 2})
    choices.append([f'batching.rows_per_microbatch={n}' for n in sizes])
  return [
      Combination(mesh, tuple(c for _, c in parts), tuple(r for r, _ in parts))
      for mesh in meshes
      for parts in itertools.product(*(enumerate(axis) for axis in choices))
  ]


def sweep(
    config: schema.ExperimentConfig,
    wanted: Sequence[Combination],
    planner: Callable[[schema.ExperimentConfig], plan_lib.Plan],
) -> Iterator[Trial]:
  """Plans combinations, but for those that need more than one too large."""
  too_large = []
  for one in wanted:
    smaller = [c for c in too_large if one.needs_as_much_as(c)]
    if smaller:
      reason = f'{" ".join(smaller[0].others)} is too large already'
      yield Trial(one.changes, None, reason)
      continue
    try:
      made = planner(overrides.apply(config, one.changes))
    except ValueError as error:
      yield Trial(one.changes, None, f'refused: {error}')
      continue
    if not made.fits:
      too_large.append(one)
    yield Trial(one.changes, made)


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
