"""Transcripts: a rollout as one row a message, for terminal and dashboard."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_tpu.records import records
from rl_tpu.text import harmless
from rl_tpu.types import token_types

ROLE_NAMES = {
    records.CONTEXT: 'context',
    records.ACTION: 'action',
    records.SUMMARY: 'summary',
    records.OBSERVATION: 'observation',
    records.RUNTIME: 'runtime',
}
COLUMNS = (
    'segment',
    'role',
    'text',
    'reward',
    'advantage',
    'value',
    'mask',
)


@dataclasses.dataclass(frozen=True)
class Message:
  """Consecutive tokens of one role, one turn and one segment.

  Attributes:
    segment: segment index.
    role: context, action, summary, observation or runtime.
    text: the tokens, decoded.
    reward: sum of the position rewards.
    advantage: mean over the trained tokens; None without an estimate.
    value: V before the first token; None without an estimate.
    trained: tokens in the policy mask; None without an estimate.
    tokens: number of tokens.
    turn: of an action or summary; -1 else.
    calls: names of the tools that it calls, as a parser typed them (L19).
  """

  segment: int
  role: str
  text: str
  reward: float
  advantage: float | None
  value: float | None
  trained: int | None
  tokens: int
  turn: int = -1
  calls: tuple[str, ...] = ()


def messages(
    rollout: records.Rollout,
    decode: Callable[[np.ndarray], str],
    estimates: Mapping[str, Any] | None = None,
) -> list[Message]:
  """The messages of a rollout in time order.

  Args:
    rollout: the record.
    decode: token ids -> text.
    estimates: the rollout's line of the estimates file: `segments`, one entry
      a stored segment, with `advantage`, `value` and `policy_mask` per
      position.
  """
  found = []
  by_place = (
      estimates['segments'] if estimates else [None] * len(rollout.segments)
  )
  pairs = sorted(
      zip(rollout.segments, by_place), key=lambda pair: pair[0].segment_index
  )
  for segment, estimate in pairs:
    for start, stop in _spans(segment):
      found.append(_message(segment, start, stop, decode, estimate))
  return found


def _spans(segment: records.Segment) -> list[tuple[int, int]]:
  changes = (segment.role[1:] != segment.role[:-1]) | (
      segment.turn_id[1:] != segment.turn_id[:-1]
  )
  bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(segment)]
  return [(a, b) for a, b in zip(bounds, bounds[1:]) if b > a]


def _message(
    segment: records.Segment,
    start: int,
    stop: int,
    decode: Callable[[np.ndarray], str],
    estimate: Mapping[str, Any] | None,
) -> Message:
  advantage = value = trained = None
  if estimate is not None:
    mask = np.asarray(estimate['policy_mask'][start:stop], bool)
    trained = int(mask.sum())
    if trained:
      chosen = np.asarray(estimate['advantage'][start:stop], float)[mask]
      advantage = float(chosen.mean())
    if segment.is_action[start]:
      # Null is a number that was not finite.
      value = float(np.asarray(estimate['value'][start], float))
  return Message(
      segment=segment.segment_index,
      role=ROLE_NAMES[str(segment.role[start])],
      text=decode(segment.token[start:stop]),
      reward=float(segment.reward[start:stop].sum()),
      advantage=advantage,
      value=value,
      trained=trained,
      tokens=stop - start,
      turn=int(segment.turn_id[start]),
      calls=_calls(segment, start, stop, decode),
  )


def _calls(
    segment: records.Segment,
    start: int,
    stop: int,
    decode: Callable[[np.ndarray], str],
) -> tuple[str, ...]:
  if not segment.is_action[start]:
    return ()
  is_name = segment.token_type[start:stop] == token_types.TOOL_NAME
  edges = np.flatnonzero(np.diff(is_name, prepend=False, append=False))
  token = segment.token[start:stop]
  return tuple(
      decode(token[a:b]).strip() for a, b in zip(edges[::2], edges[1::2])
  )


def _sums(rollout: records.Rollout) -> dict[str, float]:
  places = rollout.reward_components
  return {n: sum(v for _, _, v in p) for n, p in places.items() if p}


def boundary(segment: records.Segment) -> str:
  """One line: how a segment ended."""
  cause = f' by {segment.cut_cause}' if segment.cut_cause else ''
  return f'{segment.end_kind}{cause}, after {len(segment)} tokens'


def details(rollout: records.Rollout) -> list[str]:
  """Lines below the heading: what a reader asks next, where it is known."""
  lines = []
  for name, values in (
      ('seconds', rollout.seconds),
      ("verifier's figures", rollout.score_components),
      ('reward components', _sums(rollout)),
  ):
    if values:
      told = ', '.join(f'{n} {v:.4g}' for n, v in sorted(values.items()))
      lines.append(f'{name}: {told}')
  causes = [s.cut_cause for s in rollout.segments if s.cut_cause]
  if causes:
    counts = ', '.join(f'{c} {causes.count(c)}' for c in sorted(set(causes)))
    lines.append(f'cuts: {counts}')
  if rollout.fault_detail:
    lines.append(f'fault: {rollout.fault_detail}')
  if rollout.fault_trace:
    lines.append(rollout.fault_trace.rstrip())
  return lines


def cells(message: Message) -> tuple[str, ...]:
  """A message as texts, in the order of COLUMNS."""
  mask = (
      '' if message.trained is None else f'{message.trained}/{message.tokens}'
  )
  return (
      str(message.segment),
      message.role,
      message.text,
      f'{message.reward:g}' if message.reward else '',
      '' if message.advantage is None else f'{message.advantage:+.3f}',
      '' if message.value is None else f'{message.value:.3f}',
      mask,
  )


def heading(rollout: records.Rollout) -> str:
  """One line: what the rollout is and how it ended."""
  score = rollout.terminal_reward
  parts = [
      f'rollout {rollout.rollout_id}',
      f'task {rollout.task_id}',
      f'{rollout.termination.value}'
      + (f' ({rollout.fault_cause.value})' if rollout.fault_cause else ''),
      'not scored' if score is None else f'score {score:g}',
      {True: 'solved', False: 'not solved', None: 'solved unknown'}[
          rollout.solved
      ],
      f'{rollout.num_segments} segments',
      f'{rollout.num_actions} sampled tokens',
  ]
  if rollout.discard_reason is not None:
    parts.append(f'discarded: {rollout.discard_reason.value}')
  return ', '.join(parts)


def markdown(
    rollout: records.Rollout,
    decode: Callable[[np.ndarray], str],
    estimates: Mapping[str, Any] | None = None,
) -> str:
  """A transcript as a Markdown table, for TensorBoard's text page.

  Arguments as for `messages`.
  """
  lines = [
      f'**{_escaped(heading(rollout))}**',
      '',
      '| ' + ' | '.join(COLUMNS) + ' |',
      '|' + ' --- |' * len(COLUMNS),
  ]
  lines += [
      '| ' + ' | '.join(_escaped(cell) for cell in cells(message)) + ' |'
      for message in messages(rollout, decode, estimates)
  ]
  return '\n'.join(lines) + '\n'


def _escaped(text: str) -> str:
  text = harmless.shown(text)
  for mark in '\\`*_{}[]<>#|':
    text = text.replace(mark, '\\' + mark)
  return text.replace('\n', '⏎ ')
