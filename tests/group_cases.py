"""Members of a group as records, cut into any number of segments, for tests."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.rewards import scaling
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.types import termination as term
from tests import golden_io
from tests import synthetic

WEIGHTS = {'terminal': 1.0, 'step': 1.0}


@dataclasses.dataclass(frozen=True)
class Turn:
  """A turn of a member: its action tokens, what it earned, where it began.

  `reward` None gives no step reward at all; 0.0 is a step that earned 0.
  """

  actions: int = 1
  reward: float | None = None
  state: str | None = None


def member(
    name: str,
    turns: Sequence[Turn],
    score: float | None,
    *,
    cuts: Sequence[int] = (),
    on_observation: bool = False,
    lead: int = 1,
    **changes: Any,
) -> records.Rollout:
  """A rollout of one task.

  Args:
    name: rollout id.
    turns: in time order; an observation follows each.
    score: terminal reward.
    cuts: action indices before which a segment ends; equal ones and the ends
      give segments without an action.
    on_observation: step rewards stand on the observation after the turn, from
      where they move to its last action (G5).
    lead: context tokens of every segment.
    **changes: fields of the record.
  """
  actions = [
      (turn_id, place + 1 == turn.actions)
      for turn_id, turn in enumerate(turns)
      for place in range(turn.actions)
  ]
  bounds = [0, *sorted(cuts), len(actions)]
  segments, places = [], []
  for index, (start, stop) in enumerate(zip(bounds, bounds[1:])):
    role, turn_id = ['C'] * lead, [-1] * lead
    for turn, is_last in actions[start:stop]:
      role.append('A')
      turn_id.append(turn)
      if not is_last:
        continue
      role.append('O')
      turn_id.append(-1)
      if turns[turn].reward is not None:
        place = len(role) - (1 if on_observation else 2)
        places.append((index, place, float(turns[turn].reward)))
    reward = [0.0] * len(role)
    for segment, place, value in places:
      if segment == index:
        reward[place] += value
    segments.append({
        'segment_index': index,
        'role': ''.join(role),
        'turn_id': turn_id,
        'reward': reward,
        'cut': None if index + 2 == len(bounds) else 'compaction_cut',
        'policy_version': 0,
    })
  golden = synthetic.with_offsets({
      'rollout_id': name,
      'task_id': 't0',
      'group_id': 'g0',
      'source': 's',
      'termination': 'policy_stop',
      'abort_cause': None,
      'terminal_reward': score,
      'budgets': {'budget_visible': True, 'holds_at_eval': True},
      'num_segments': len(segments),
      'segments': segments,
  })
  states = {
      turn_id: turn.state
      for turn_id, turn in enumerate(turns)
      if turn.state is not None
  }
  fields = {
      'reward_components': {'step': places},
      'state_ids': states,
      **changes,
  }
  return dataclasses.replace(golden_io.rollout(golden), **fields)


def spread_cuts(num_actions: int, segments: int) -> list[int]:
  """Cuts that give so many segments, some of them without an action."""
  return [(k * num_actions) // segments for k in range(1, segments)]


def admit(
    rollouts: Sequence[records.Rollout],
    estimator: str = 'grpo',
    *,
    row_length: int = 64,
    group: schema.GroupConfig | None = None,
    reward: schema.RewardConfig | None = None,
    scales: scaling.Scales | None = None,
) -> admission.Admission:
  """Judges one batch under a group estimator."""
  return admission.admit(
      rollouts,
      termination=term.TerminationRules(),
      data=schema.DataConfig(),
      reward=reward or schema.RewardConfig(weights=WEIGHTS),
      group=group or schema.GroupConfig(size=max(len(rollouts), 2)),
      estimator=estimator,
      row_length=row_length,
      scales=scales,
  )


def build(
    admitted: admission.Admission,
    *,
    row_length: int = 64,
    anchor: str | None = 'state',
) -> batching.Batch:
  """Packs a judged batch as training does."""
  return batching.build(
      admitted,
      batching=schema.BatchingConfig(
          row_length=row_length, rows_per_microbatch=2
      ),
      gae=schema.GaeConfig(),
      critic=schema.CriticConfig(),
      loss=schema.LossConfig(),
      compaction=schema.CompactionConfig(),
      anchor=anchor,
  )


def advantages(
    rollouts: Sequence[records.Rollout],
    estimator: str = 'grpo',
    *,
    row_length: int = 64,
    gigpo: schema.GigpoConfig = schema.GigpoConfig(),
    **settings: Any,
) -> dict[str, np.ndarray]:
  """Advantage of every action by rollout, through admission and packing."""
  group = schema.GroupConfig(size=max(len(rollouts), 2), **settings)
  admitted = admit(rollouts, estimator, row_length=row_length, group=group)
  batch = build(admitted, row_length=row_length, anchor=gigpo.anchor)
  array_BT = groups.advantages(
      batch, schema.AdvantageConfig(estimator=estimator), group, gigpo
  )
  assert array_BT.dtype == np.float32
  np.testing.assert_array_equal(array_BT[batch.time_BT < 0], 0.0)
  out = {}
  for rollout, parts in zip(batch.rollouts, batch.unpack(array_BT)):
    found = []
    for segment, part in zip(rollout.segments, parts):
      np.testing.assert_array_equal(part[~segment.is_action], 0.0)
      found.append(part[segment.is_action])
    out[rollout.rollout_id] = np.concatenate(found)
  return out
