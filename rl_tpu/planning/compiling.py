"""One program, compiled for devices that need not be there, in figures."""

import dataclasses
import hashlib
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import jax

from rl_tpu.planning import collectives
from rl_tpu.planning import flops
from rl_tpu.sharding import chips
from rl_tpu.types import programs as programs_lib

_TOO_LARGE = re.compile(r'\(([\d.]+)([KMGT])\) exceeds available HBM')
_USED = re.compile(r'Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm')
_UNIT = {'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


@dataclasses.dataclass(frozen=True)
class Figures:
  """What the compiler says of one program, a device unless said otherwise.

  Attributes:
    argument_bytes: of all arguments.
    output_bytes: of what is not written into a donated argument.
    temporary_bytes: everything between.
    refused: the compiler found that it cannot fit; the rest of the memory is
      what it named, or unknown.
    compile_s: seconds that this machine compiled.
    flops: of matrix products, all devices together.
    sent_bytes: by kind of collective.
  """

  argument_bytes: int
  output_bytes: int
  temporary_bytes: int
  refused: bool
  compile_s: float
  flops: float
  sent_bytes: Mapping[str, float]

  @property
  def peak_bytes(self) -> int:
    """Arguments, outputs and temporaries together."""
    return self.argument_bytes + self.output_bytes + self.temporary_bytes

  def least_seconds(
      self, chip: chips.Chip, devices: int, reads: int
  ) -> dict[str, float]:
    """Time that arithmetic, memory and links need at their published rates.

    Args:
      chip: rates of one device.
      devices: that share the arithmetic.
      reads: how often the arguments are read.
    """
    moved = reads * self.argument_bytes + self.output_bytes
    return {
        'compute': self.flops / devices / chip.bf16_flops,
        'memory': moved / chip.memory_bytes,
        'links': sum(self.sent_bytes.values()) / chip.link_bytes,
    }


def compile_program(
    program: programs_lib.Program, known: dict[str, Figures]
) -> Figures:
  """Compiles a program for the devices of its arguments' shardings.

  Args:
    program: to compile.
    known: figures by the digest of what was compiled for the same devices
      before; gets this program's. The text that is lowered has shapes,
      shardings and donations in it, so equal text is the same program.
  """
  traced = program.function.trace(*program.arguments)
  counted = flops.count(traced.jaxpr)
  begun = time.monotonic()
  lowered = traced.lower()
  digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()
  if digest not in known:
    known[digest] = _compile(program, lowered, counted, begun)
  return known[digest]


def _compile(program, lowered, counted: float, begun: float) -> Figures:
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return Figures(
        argument_bytes=bytes_on_a_device(program.arguments),
        output_bytes=0,
        temporary_bytes=_named_size(str(error)),
        refused=True,
        compile_s=time.monotonic() - begun,
        flops=counted,
        sent_bytes={},
    )
  memory = compiled.memory_analysis()
  return Figures(
      argument_bytes=memory.argument_size_in_bytes,
      output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
      temporary_bytes=memory.temp_size_in_bytes,
      refused=False,
      compile_s=time.monotonic() - begun,
      flops=counted,
      sent_bytes=collectives.bytes_by_kind(compiled.as_text()),
  )


def _named_size(message: str) -> int:
  """Bytes of temporaries that the compiler's refusal names; 0 if none."""
  found = _TOO_LARGE.search(message) or _USED.search(message)
  return int(float(found.group(1)) * _UNIT[found.group(2)]) if found else 0


def bytes_on_a_device(tree: Any) -> int:
  """Bytes of abstract arrays that one device holds."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    shape = leaf.shape
    if getattr(leaf, 'sharding', None) is not None:
      shape = leaf.sharding.shard_shape(shape)
    total += math.prod(shape) * leaf.dtype.itemsize
  return total
