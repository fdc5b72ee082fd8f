"""Presets of libtpu flags, off by default.

None of them was measured with this program: they are what MaxText's published
benchmarks run with, where a user may start to try. Names are checked against
the installed libtpu by tests/launch/libtpu_test.py.
"""

import dataclasses
from collections.abc import Mapping, Sequence

_MAXTEXT = 'github.com/AI-Hypercomputer/maxtext/blob/main/benchmarks/'
_V5E = _MAXTEXT + 'maxtext_v5e_model_configs.py'
_V5P = _MAXTEXT + 'maxtext_v5p_model_configs.py'
_V6E = _MAXTEXT + 'maxtext_trillium_model_configs.py'

# Parameters that are gathered while the layer before them computes.
_OVERLAP = {
    'xla_tpu_enable_async_collective_fusion': 'true',
    'xla_tpu_enable_async_collective_fusion_fuse_all_gather': 'true',
    'xla_tpu_enable_async_collective_fusion_multiple_steps': 'true',
    'xla_tpu_overlap_compute_collective_tc': 'true',
    'xla_enable_async_all_gather': 'true',
}
# Gradients summed over several slices, through the data centre's network.
_SLICES = {
    'xla_tpu_enable_data_parallel_all_reduce_opt': 'true',
    'xla_tpu_data_parallel_opt_different_sized_ops': 'true',
}
# Vector memory that one fusion or kernel may use, in KiB.
_VMEM = 'xla_tpu_scoped_vmem_limit_kib'


@dataclasses.dataclass(frozen=True)
class Preset:
  """Flags that go together on one generation of chips.

  Attributes:
    flags: name -> value.
    source: where they are published.
  """

  flags: Mapping[str, str]
  source: str


# Preset -> generation -> flags.
PRESETS = {
    'overlap': {
        'v5e': Preset(_OVERLAP, _V5E),
        'v5p': Preset(_OVERLAP, _V5P),
        'v6e': Preset(_OVERLAP, _V6E),
    },
    'slices': {
        'v5e': Preset(_SLICES, _V5E),
        'v5p': Preset(_SLICES, _V5P),
        'v6e': Preset(_SLICES, _V6E),
    },
    'vmem': {
        'v5e': Preset({_VMEM: '98304'}, _V5E),
        'v5p': Preset({_VMEM: '81920'}, _V5P),
        'v6e': Preset({_VMEM: '98304'}, _V6E),
    },
}


def flags(names: Sequence[str], generation: str) -> str:
  """The flags of some presets, as LIBTPU_INIT_ARGS takes them.

  Args:
    names: of presets.
    generation: of the chips, such as v5p.

  Raises:
    ValueError: no such preset, or none for this generation.
  """
  found = {}
  for name in names:
    preset = PRESETS.get(name, {}).get(generation)
    if preset is None:
      known = [n for n, chips in PRESETS.items() if generation in chips]
      raise ValueError(
          f'--libtpu-presets={name}: no such preset for {generation}; it has'
          f' {", ".join(known) or "none"}.'
      )
    found |= preset.flags
  return ' '.join(f'--{name}={value}' for name, value in found.items())
