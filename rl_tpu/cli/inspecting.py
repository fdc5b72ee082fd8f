"""Transcripts of a run's stored rollouts, in the terminal."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table
import rich.text

from rl_tpu.config import loading
from rl_tpu.metrics import transcripts
from rl_tpu.records import jsonl
from rl_tpu.records import records

Decode = Callable[[np.ndarray], str]
Chosen = Sequence[tuple[records.Rollout, Mapping[str, Any] | None]]

_STYLES = {'action': 'bold green', 'summary': 'bold cyan', 'context': 'dim'}


def choose(
    workdir: str,
    *,
    step: int,
    rollout_id: str,
    order: str,
    limit: int,
) -> Chosen:
  """Rollouts to show, each with its estimates where it was trained on.

  Args:
    workdir: of the run.
    step: update; 0 is the last one stored.
    rollout_id: one rollout only; empty is any.
    order: first (as stored), best or worst (by terminal reward).
    limit: at most so many.

  Raises:
    ValueError: no rollouts there, no such step, or no such rollout.
  """
  steps = jsonl.steps(workdir)
  if not steps:
    raise ValueError(f'--workdir={workdir}: it holds no rollouts.')
  if step and step not in steps:
    raise ValueError(
        f'--step={step}: rollouts are stored of steps {steps[0]} to'
        f' {steps[-1]}.'
    )
  if limit < 1:
    raise ValueError(f'--limit={limit}: show at least 1 rollout.')
  step = step or steps[-1]
  path = jsonl.rollouts_path(workdir, step)
  found = list(jsonl.read(path))
  if not found:
    raise ValueError(f'{path}: it holds no rollouts; choose another --step.')
  if rollout_id:
    found = [r for r in found if r.rollout_id == rollout_id]
    if not found:
      raise ValueError(
          f'--rollout={rollout_id}: step {step} has no such rollout.'
      )
  if order != 'first':
    sign = -1.0 if order == 'best' else 1.0
    found = [r for r in found if r.terminal_reward is not None]
    found.sort(key=lambda r: sign * r.terminal_reward)
  estimates = _estimates(jsonl.estimates_path(workdir, step))
  return [(r, estimates.get(r.rollout_id)) for r in found[:limit]]


def _estimates(path: pathlib.Path) -> dict[str, Mapping[str, Any]]:
  if not path.exists():
    return {}
  return {data['rollout_id']: data for _, data in jsonl.read_lines(path)}


def decoder(workdir: str) -> Decode:
  """Token ids -> text with the run's tokenizer; ids where there is none."""
  path = pathlib.Path(workdir) / 'config.json'
  if path.exists():
    folder = pathlib.Path(loading.load(path).model.path)
    if (folder / 'tokenizer.json').exists():
      from rl_tpu.text import tokenizer

      return tokenizer.Tokenizer.from_folder(folder).decode
  return lambda ids: ' '.join(str(i) for i in ids)


def show(chosen: Chosen, decode: Decode, console: rich.console.Console) -> None:
  """Prints a table a rollout, one row a message."""
  for rollout, estimates in chosen:
    table = rich.table.Table(
        title=rich.text.Text(transcripts.heading(rollout)),
        title_justify='left',
    )
    for name in transcripts.COLUMNS:
      is_number = name in ('reward', 'advantage', 'value', 'mask')
      table.add_column(
          name,
          justify='right' if is_number else 'left',
          overflow='fold',
          no_wrap=is_number,
      )
    segment = None
    for message in transcripts.messages(rollout, decode, estimates):
      if segment is not None and message.segment != segment:
        table.add_section()
      segment = message.segment
      style = _STYLES.get(message.role, '')
      # Text, not str: brackets in a transcript are no markup.
      table.add_row(*(
          rich.text.Text(cell.rstrip('\n'), style=style)
          for cell in transcripts.cells(message)
      ))
    console.print(table)
