"""What TPU chips hold and how fast they are, as their vendor publishes it.

Rates are peaks: nothing that runs reaches all of them at once, so a time
computed from them is a bound from below. Sources, of Google Cloud's TPU
documentation: the pages v4, v5e, v5p, v6e and tpu7x. Memory is what the
compiler of libtpu 0.0.42.1 says is usable, which is less than the chip's.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
  """One kind of chip, by JAX device: a chip of v5e or v5p, half a tpu7x.

  Attributes:
    name: as topologies are named.
    memory_gib: usable by programs.
    bf16_flops: peak of matrix products in bfloat16, a second.
    memory_bytes: to and from its memory, a second.
    link_bytes: to and from its neighbours, both ways together, a second.
    devices: JAX devices of a chip.
  """

  name: str
  memory_gib: float
  bf16_flops: float
  memory_bytes: float
  link_bytes: float
  devices: int = 1


CHIPS = {
    chip.name: chip
    for chip in (
        Chip('v4', 30.75, 275e12, 1228e9, 600e9),
        Chip('v5e', 15.75, 197e12, 819e9, 400e9),
        Chip('v5p', 95.74, 459e12, 2765e9, 1200e9),
        Chip('v6e', 31.25, 918e12, 1638e9, 800e9),
        # A chip is two devices, each with half of everything.
        Chip('tpu7x', 94.75, 2307e12 / 2, 7380e9 / 2, 1200e9 / 2, devices=2),
    )
}
