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
from rl_tpu.text import harmless

Decode = Callable[[np.ndarray], str]
Chosen = Sequence[tuple[records.Rollout, Mapping[str, Any] | None]]

# Characters of a message; --rollout shows all of them.
_LONG = 2000
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


def show(
    chosen: Chosen,
    decode: Decode,
    console: rich.console.Console,
    *,
    whole: bool = False,
) -> None:
  """Prints a table a rollout, one row a message.

  Args:
    chosen: rollouts, each with its estimates.
    decode: token ids -> text.
    console: where to.
    whole: long texts are not shortened.
  """
  for rollout, estimates in chosen:
    console.print(_text(transcripts.heading(rollout), style='bold'))
    for line in transcripts.details(rollout):
      console.print(_text(line, style='dim'))
    console.print(_table(rollout, estimates, decode, whole))


def _table(
    rollout: records.Rollout,
    estimates: Mapping[str, Any] | None,
    decode: Decode,
    whole: bool,
) -> rich.table.Table:
  table = rich.table.Table()
  for name in transcripts.COLUMNS:
    is_number = name in ('reward', 'advantage', 'value', 'mask')
    table.add_column(
        name,
        justify='right' if is_number else 'left',
        overflow='fold',
        no_wrap=is_number,
    )
  segments = {s.segment_index: s for s in rollout.segments}
  found = transcripts.messages(rollout, decode, estimates)
  for message, after in zip(found, [*found[1:], None]):
    style = _STYLES.get(message.role, '')
    number, _, text, *rest = transcripts.cells(message)
    text = text if whole else harmless.shortened(text, _LONG)
    table.add_row(
        *(_text(cell, style=style) for cell in (number, _role(message), text)),
        *(_text(cell, style=style) for cell in rest),
    )
    if after is None or after.segment != message.segment:
      end = transcripts.boundary(segments[message.segment])
      cells = ('', 'end', end)
      table.add_row(*(_text(cell, style='yellow') for cell in cells))
      table.add_section()
  return table


def _role(message: transcripts.Message) -> str:
  """Role, turn, and the tools that are called."""
  turn = f' {message.turn}' if message.turn >= 0 else ''
  calls = ''.join(f'\ncalls {name}' for name in message.calls)
  return f'{message.role}{turn}{calls}'


def _text(text: str, *, style: str) -> rich.text.Text:
  # Text, not str: brackets in a transcript are no markup.
  return rich.text.Text(harmless.shown(text.rstrip('\n')), style=style)
