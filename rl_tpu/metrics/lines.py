"""The lines of a `metrics.jsonl`, and how a resumed run mends them (K37)."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import json
import os
import pathlib
from typing import Any

from absl import logging

# A checkpoint keeps the lines of so many updates.
TAIL_STEPS = 8


def tail(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """The lines of the last updates, in their order."""
  newest = max((line['step'] for line in lines), default=0)
  return [line for line in lines if line['step'] > newest - TAIL_STEPS]


def take_up(
    path: pathlib.Path, step: int, kept: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
  """Makes a file what it was at a checkpoint, as far as that is known.

  Later lines and damaged ones go; lines that the checkpoint has kept and the
  file has lost come back. An update without a line is named in the log.

  Args:
    path: the file; it may be gone.
    step: of the checkpoint.
    kept: the last lines before it.

  Returns:
    The lines of the file.
  """
  found = [line for line in _read(path) if line['step'] <= step]
  # An update that was stopped in, and taken back, has written its figures.
  kept = [line for line in kept if line['step'] <= step]
  oldest = min((line['step'] for line in kept), default=step)
  recent = [line for line in found if line['step'] >= oldest]
  lost = [line for line in kept if line not in recent]
  lines = sorted([*found, *lost], key=lambda line: line['step'])
  partial = path.with_name(path.name + '.partial')
  partial.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  os.replace(partial, path)
  if lost:
    logging.warning(
        '%s had lost %d lines; they come from the checkpoint', path, len(lost)
    )
  gaps = set(range(1, step + 1)) - {line['step'] for line in lines}
  if gaps:
    logging.warning('%s has no line of updates %s', path, _ranges(gaps))
  return lines


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The lines that are whole; a torn last one is what a kill leaves."""
  if not path.exists():
    return []
  lines, damaged = [], 0
  for text in path.read_text('utf-8', errors='replace').splitlines(True):
    try:
      line = json.loads(text)
      int(line['step'])
    except (ValueError, KeyError, TypeError):
      damaged += text.endswith('\n')
      continue
    lines.append(line)
  if damaged:
    logging.warning('%s: %d damaged lines are left out', path, damaged)
  return lines


def _ranges(steps: Iterable[int]) -> str:
  """Numbers as text: `3, 5 to 9`."""
  shown = []
  # In a run of numbers, number minus place stays the same.
  for _, group in itertools.groupby(
      enumerate(sorted(steps)), key=lambda pair: pair[1] - pair[0]
  ):
    run = [number for _, number in group]
    shown.append(f'{run[0]} to {run[-1]}' if len(run) > 1 else str(run[0]))
  return ', '.join(shown)
