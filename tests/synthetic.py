"""Rollouts in the form of the golden files, made up from roles or at random."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

Golden = dict[str, Any]

CONFIG = {
    'gamma': 0.97,
    'lambda_policy': {'kind': 'fixed', 'value': 0.9},
    'lambda_critic': {'kind': 'fixed', 'value': 0.8},
    'time_unit': 'token',
    'chain': 'continue',
    'summary_in_policy_loss': True,
    'allow_dropped_prefix': False,
    'critic_level': 'token',
    'kl': {'in': 'none', 'coef': 0.0},
    'termination': {},
}


def case(rollouts: Sequence[Golden], **config: Any) -> Golden:
  """A case without expectations."""
  return {'config': {**CONFIG, **config}, 'rollouts': list(rollouts)}


def rollout(
    roles: Sequence[str],
    *,
    rollout_id: str = 'r0',
    values: Sequence[Sequence[float]] | None = None,
    rewards: Sequence[Sequence[float]] | None = None,
    termination: str = 'success',
    terminal_reward: float | None = 1.0,
    final_value: float = 0.5,
    task_id: str = 't0',
    source: str = 'math',
    version: int = 0,
) -> Golden:
  """A rollout with one segment per string of roles; a gap ends a turn.

  Values are given per position; None fills in 0 at actions. Rewards default
  to 0.
  """
  segments = []
  turn, before = -1, 'C'
  for index, text in enumerate(roles):
    turn_id = []
    before = 'C'
    for role in text:
      if role in 'AS':
        turn += role != before
        turn_id.append(turn)
      else:
        turn_id.append(-1)
      before = role
    last = index + 1 == len(roles)
    segments.append({
        'segment_index': index,
        'role': text,
        'turn_id': turn_id,
        'reward': list(rewards[index]) if rewards else [0.0] * len(text),
        'value': list(values[index]) if values else [0.0] * len(text),
        'final_value': final_value if last else None,
        'cut': None if last else 'compaction_cut',
        'policy_version': version,
    })
  golden = {
      'rollout_id': rollout_id,
      'task_id': task_id,
      'group_id': None,
      'source': source,
      'termination': termination,
      'abort_cause': None,
      'terminal_reward': terminal_reward,
      'budgets': {'budget_visible': False, 'holds_at_eval': False},
      'num_segments': len(segments),
      'segments': segments,
  }
  return with_offsets(golden)


def with_offsets(golden: Golden) -> Golden:
  """Recomputes the offsets of R2 over all segments, sorted by index."""
  golden = copy.deepcopy(golden)
  segments = sorted(golden['segments'], key=lambda s: s['segment_index'])
  last_of = {
      turn: index
      for index, segment in enumerate(segments)
      for turn in segment['turn_id']
      if turn >= 0
  }
  tokens = actions = turns = 0
  for index, segment in enumerate(segments):
    segment['global_token_offset'] = tokens
    segment['action_offset'] = actions
    segment['turn_offset'] = turns
    tokens += len(segment['role'])
    actions += sum(role in 'AS' for role in segment['role'])
    turns += sum(last == index for last in last_of.values())
  return golden


def random_rollout(
    rng: np.random.Generator, rollout_id: str, *, max_segments: int = 4
) -> Golden:
  """Irregular segments, gaps, rewards anywhere, either kind of end."""
  roles = []
  count = int(rng.integers(1, max_segments + 1))
  for index in range(count):
    text = 'C' * int(rng.integers(1, 4))
    for _ in range(int(rng.integers(0, 4))):
      text += 'A' * int(rng.integers(1, 5))
      text += ''.join(rng.choice(list('OR'), int(rng.integers(0, 3))))
    if index + 1 < count and rng.random() < 0.5:
      text += 'R' + 'S' * int(rng.integers(1, 3))
    roles.append(text)
  if not any('A' in text for text in roles):
    roles[0] += 'A'
  numbers = lambda text: rng.normal(size=len(text)).round(3).tolist()
  sparse = lambda text: (
      rng.normal(size=len(text)) * (rng.random(len(text)) < 0.2)
  ).round(3).tolist()
  ends = rng.random() < 0.5
  return rollout(
      roles,
      rollout_id=rollout_id,
      values=[numbers(text) for text in roles],
      rewards=[sparse(text) for text in roles],
      termination='success' if ends else 'budget_truncation',
      terminal_reward=round(float(rng.normal()), 3) if ends else None,
      final_value=round(float(rng.normal()), 3),
      task_id=f't{int(rng.integers(0, 3))}',
      source=str(rng.choice(['math', 'code'])),
  )


def random_rollouts(
    rng: np.random.Generator, count: int, *, prefix: str = 'r'
) -> list[Golden]:
  """Several of them."""
  return [random_rollout(rng, f'{prefix}{k}') for k in range(count)]
