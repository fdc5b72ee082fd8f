"""Whether an experiment fits a TPU topology: every program, compiled."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rl_tpu.assembly import ahead as ahead_lib
from rl_tpu.config import schema
from rl_tpu.planning import compiling
from rl_tpu.planning import flops
from rl_tpu.sharding import chips
from rl_tpu.types import programs as programs_lib


@dataclasses.dataclass(frozen=True)
class Row:
  """One program of the plan; bytes are those of one device.

  Attributes:
    name: of the program.
    calls: in one training step.
    figures: of the compiler.
    beside_bytes: what stays on the device and is not among the arguments.
    limit_bytes: usable memory of a device.
    holds: name -> bytes of what its arguments are.
    model_flops: that the model cannot do without, all devices together.
    least_s: time of one call at the chip's rates: compute, memory, links.
  """

  name: str
  calls: int
  figures: compiling.Figures
  beside_bytes: int
  limit_bytes: int
  holds: Mapping[str, int]
  model_flops: float
  least_s: Mapping[str, float]

  @property
  def total_bytes(self) -> int:
    """The program's peak and what lies beside it."""
    return self.figures.peak_bytes + self.beside_bytes

  @property
  def fits(self) -> bool:
    """Whether a device holds both."""
    return not self.figures.refused and self.total_bytes <= self.limit_bytes

  @property
  def extra_share(self) -> float:
    """Part of the arithmetic that is recomputation or masked away."""
    if not self.model_flops or not self.figures.flops:
      return 0.0
    return max(0.0, 1.0 - self.model_flops / self.figures.flops)

  @property
  def bound_s(self) -> float:
    """No call is faster than this."""
    return max(self.least_s.values())


@dataclasses.dataclass(frozen=True)
class Plan:
  """The whole table.

  Attributes:
    experiment: its name.
    topology: as the user wrote it.
    slices: that are joined.
    devices: JAX devices in all.
    mesh: axis -> size.
    batch: rows, tokens of a row.
    resident: name -> bytes that stay on a device.
    rows: one a program.
  """

  experiment: str
  topology: str
  slices: int
  devices: int
  mesh: Mapping[str, int]
  batch: tuple[int, int]
  resident: Mapping[str, int]
  rows: tuple[Row, ...]

  @property
  def fits(self) -> bool:
    """Whether every program does."""
    return all(row.fits for row in self.rows)

  @property
  def bound_s(self) -> float:
    """A training step without its decoding is not faster than this."""
    return sum(r.calls * r.bound_s for r in self.rows if r.name != 'decode')

  def as_json(self) -> dict[str, Any]:
    """Everything, as plain data."""
    out = dataclasses.asdict(self)
    out['fits'], out['bound_s'] = self.fits, self.bound_s
    for row, plain in zip(self.rows, out['rows']):
      plain |= {
          'fits': row.fits,
          'total_bytes': row.total_bytes,
          'bound_s': row.bound_s,
          'extra_share': row.extra_share,
      }
    return out


def make(
    config: schema.ExperimentConfig,
    chip: chips.Chip,
    devices: Sequence[jax.Device],
    *,
    topology: str,
    slices: int = 1,
    only: Callable[[str], bool] = lambda name: True,
    known: dict[str, compiling.Figures] | None = None,
    until_unfit: bool = False,
    on_program: Callable[[str], None] = lambda name: None,
) -> Plan:
  """Compiles every program of an experiment.

  Args:
    config: the experiment.
    chip: limits and rates of a device.
    devices: to compile for.
    topology: their name, for the table.
    slices: that they are in.
    only: chooses programs by name.
    known: figures of programs that were compiled for these devices before, to
      look up and to add to.
    until_unfit: the gradients, which need most, come first, and the table
      ends with the first program that does not fit.
    on_program: told each name before it is compiled.

  Raises:
    ValueError: whatever the run would refuse at its start.
  """
  ahead = ahead_lib.assemble(config, devices)
  resident = {
      name: compiling.bytes_on_a_device(tree)
      for name, tree in ahead.resident.items()
  }
  known = {} if known is None else known
  programs = [p for p in ahead.programs if only(p.name)]
  if until_unfit:
    programs.sort(key=lambda p: not p.backward)
  rows = []
  for program in programs:
    on_program(program.name)
    figures = compiling.compile_program(program, known)
    rows.append(_row(ahead, program, figures, resident, chip, len(devices)))
    if until_unfit and not rows[-1].fits:
      break
  return Plan(
      experiment=config.name,
      topology=topology,
      slices=slices,
      devices=len(devices),
      mesh=dict(ahead.mesh.shape),
      batch=(ahead.sizes.rows, ahead.sizes.length),
      resident=resident,
      rows=tuple(rows),
  )


def _row(ahead, program, figures, resident, chip, devices: int) -> Row:
  holds = {
      name: compiling.bytes_on_a_device(tree)
      for name, tree in program.holds.items()
  }
  beside = sum(
      size for name, size in resident.items() if name not in program.holds
  )
  # One microbatch of the batch is an argument, the others wait beside it.
  if 'batch' in program.holds:
    beside += max(0, resident['batch'] - holds['batch'])
  return Row(
      name=program.name,
      calls=program.calls,
      figures=figures,
      beside_bytes=beside,
      limit_bytes=int(chip.memory_gib * 2**30),
      holds=holds,
      model_flops=_model_flops(ahead, program),
      least_s=figures.least_seconds(chip, devices, program.reads),
  )


def _model_flops(ahead, program: programs_lib.Program) -> float:
  if not program.tokens:
    return 0.0
  is_critic = program.name in ('values', 'critic gradient')
  length = program.rows or ahead.config.budgets.window
  forward = flops.of_model(
      ahead.decoder,
      program.tokens,
      length,
      heads=1 if is_critic else ahead.decoder.vocab_size,
  )
  return forward * (3 if program.backward else 1)
