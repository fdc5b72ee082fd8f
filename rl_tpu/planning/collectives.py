"""What a compiled program sends between devices, read from its text."""

import collections
import math
import re
from collections.abc import Mapping

KINDS = (
    'all-gather',
    'all-reduce',
    'reduce-scatter',
    'all-to-all',
    'collective-permute',
)
_BYTES = {
    'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2,
    's32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8,
}
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.-]+) \(.*\{$')
_COLLECTIVE = re.compile(
    r'= (\(.*?\)|\S+) (' + '|'.join(KINDS) + r')(-start)?\('
)
_CALLED = re.compile(r'(?:calls|to_apply|body)=%?([\w.-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_LOOP = re.compile(r'condition=%?([\w.-]+), body=%?([\w.-]+)')
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\]')
# A gather that arithmetic overlaps is printed in the fusion that starts it, in
# every one that goes on with it and in the one that ends it.
_GOES_ON = 'async_collective_fusion'
_ENDS = 'custom_call_target="AsyncCollectiveDone"'
_LIMIT = re.compile(r'[su]32\[\]\S* constant\((\d+)\)')


def bytes_by_kind(text: str) -> Mapping[str, float]:
  """Bytes that a device sends or receives, by kind of collective.

  Args:
    text: of a compiled program. A loop counts as often as the constant that
      its condition compares with, a collective that overlaps with arithmetic
      where it starts; the size is that of the result.
  """
  bodies, entry = _computations(text)
  totals: collections.Counter[str] = collections.Counter()
  _walk(entry, 1, bodies, totals)
  return dict(totals)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
  bodies: dict[str, list[str]] = {}
  entry, lines = '', []
  for line in text.splitlines():
    opened = _COMPUTATION.match(line)
    if opened:
      lines = bodies.setdefault(opened.group(1), [])
      if line.startswith('ENTRY'):
        entry = opened.group(1)
    elif line.startswith(' '):
      lines.append(line)
  return bodies, entry


def _walk(name: str, times: int, bodies, totals) -> None:
  lines = bodies.get(name, ())
  if name.startswith(_GOES_ON) or any(_ENDS in line for line in lines):
    return
  for line in lines:
    found = _COLLECTIVE.search(line)
    if found:
      shape, kind, started = found.groups()
      if name.startswith('all-reduce-scatter'):
        kind = 'reduce-scatter'  # Fused with the slice that each one keeps.
      # The result of a start holds the operand, too.
      size = _size(shape, largest=bool(started))
      totals[kind] += times * size * (2 if kind == 'all-reduce' else 1)
      continue
    loop = _LOOP.search(line)
    repeats = times
    if loop:
      repeats = times * _trips(bodies.get(loop.group(1), ()))
    for called in _CALLED.findall(line):
      _walk(called, repeats, bodies, totals)
    for branches in _BRANCHES.findall(line):
      for branch in branches.split(','):
        _walk(branch.strip().lstrip('%'), times, bodies, totals)


def _trips(condition) -> int:
  limits = [int(n) for line in condition for n in _LIMIT.findall(line)]
  return max(limits, default=1)


def _size(shape: str, *, largest: bool) -> int:
  sizes = [
      _BYTES.get(dtype, 4) * math.prod(int(n) for n in dims.split(',') if n)
      for dtype, dims in _ARRAY.findall(shape)
  ]
  return max(sizes, default=0) if largest else sum(sizes)
