"""Advantages from comparing rollouts of one task (section 5, E1 to E7).

The member of a group is a rollout with one return, never a segment. All
statistics are float64 on the host. `stepwise` holds the estimators whose
advantage differs from step to step of a rollout (E5, E6).
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

import numpy as np

from rl_tpu.advantages import stepwise
from rl_tpu.config import schema
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import statistics

# One number for every member, given to all of its tokens.
BY_ROLLOUT = ('grpo', 'dr_grpo', 'rloo')
ESTIMATORS = (*BY_ROLLOUT, *stepwise.ESTIMATORS)
ON_MISMATCH = ('split', 'drop', 'error')


def grpo(
    rewards: Sequence[float], *, eps: float, std_floor: float
) -> np.ndarray:
  """(R - mean) / (population std + eps), exactly 0 where degenerate (E3)."""
  returns = np.asarray(rewards, np.float64)
  std = np.std(returns)
  if statistics.is_degenerate(std, returns, floor=std_floor):
    return np.zeros_like(returns)
  return (returns - np.mean(returns)) / (std + eps)


def dr_grpo(rewards: Sequence[float]) -> np.ndarray:
  """R - mean (E4, 2503.20783)."""
  returns = np.asarray(rewards, np.float64)
  return returns - np.mean(returns)


def rloo(rewards: Sequence[float]) -> np.ndarray:
  """R - mean of the other members (E4, 2402.14740)."""
  size = len(rewards)
  if size < 2:
    raise ValueError(f'rloo needs at least 2 members, got {size}.')
  return dr_grpo(rewards) * (size / (size - 1))


@dataclasses.dataclass(frozen=True)
class Member:
  """A rollout in a comparison.

  Attributes:
    rollout_id: its id.
    key: what has to agree for two returns to be comparable (E7).
    group: the group it was sampled in; mismatches are counted inside it.
  """

  rollout_id: str
  key: Hashable
  group: Hashable


@dataclasses.dataclass(frozen=True)
class Partition:
  """Members that may be compared.

  Attributes:
    subgroups: rollout ids of every comparison, members in their order.
    incomplete: rollout ids left out as `group_incomplete`.
    num_keys: different keys, before anything was left out.
  """

  subgroups: tuple[tuple[str, ...], ...]
  incomplete: tuple[str, ...]
  num_keys: int


def partition(
    members: Sequence[Member], *, min_size: int, on_mismatch: str = 'split'
) -> Partition:
  """Splits members into comparable subgroups of at least `min_size` (E7).

  Raises:
    ValueError: a setting out of range, or members with different keys under
      `on_mismatch = error`.
  """
  if on_mismatch not in ON_MISMATCH:
    raise ValueError(
        f'group.on_mismatch must be one of {", ".join(ON_MISMATCH)}, got'
        f' {on_mismatch!r}.'
    )
  if min_size < 2:
    raise ValueError(
        f'group.min_size must be at least 2, got {min_size}: a group of one'
        ' has nothing to be compared with.'
    )
  by_group: dict[Hashable, dict[Hashable, list[str]]] = {}
  for member in members:
    keys = by_group.setdefault(member.group, {})
    keys.setdefault(member.key, []).append(member.rollout_id)
  subgroups, incomplete = [], []
  for group, keys in by_group.items():
    if len(keys) > 1 and on_mismatch == 'error':
      raise ValueError(
          f'group {group!r} has members under {len(keys)} different'
          ' conditions, and group.on_mismatch is error.'
      )
    dropped = len(keys) > 1 and on_mismatch == 'drop'
    for ids in keys.values():
      if dropped or len(ids) < min_size:
        incomplete.extend(ids)
      else:
        subgroups.append(tuple(ids))
  num_keys = len({(m.group, m.key) for m in members})
  return Partition(tuple(subgroups), tuple(incomplete), num_keys)


def compare(
    returns: Mapping[Hashable, float],
    subgroups: Sequence[Sequence[Hashable]],
    *,
    estimator: str,
    eps: float,
    std_floor: float,
) -> dict[Hashable, float]:
  """One number per member of every subgroup.

  Args:
    returns: return of every member (E2).
    subgroups: members that are compared, such as `Partition.subgroups`.
    estimator: grpo, dr_grpo or rloo.
    eps: added to the standard deviation (grpo).
    std_floor: at or below it a group teaches nothing (G15).

  Raises:
    ValueError: an estimator that does not exist.
  """
  out: dict[Hashable, float] = {}
  for members in subgroups:
    values = [returns[member] for member in members]
    if estimator == 'grpo':
      result = grpo(values, eps=eps, std_floor=std_floor)
    elif estimator == 'dr_grpo':
      result = dr_grpo(values)
    elif estimator == 'rloo':
      result = rloo(values)
    else:
      raise ValueError(
          'advantage.estimator must be gae,'
          f' {", ".join(ESTIMATORS)}, got {estimator!r}.'
      )
    out.update(zip(members, result.tolist()))
  return out


class Grouped(Protocol):
  """What `advantages` needs of a batch (`rollout.batching.Batch`).

  Attributes:
    segments: device arrays in numpy form.
    return_R: return of every rollout, float64 (E2).
    score_R: its terminal reward alone.
    subgroup_R: which rollouts are compared; -1 with none.
    actions: steps and turns, for the estimators of `stepwise`.
  """

  segments: batch_lib.SegmentBatch
  return_R: np.ndarray
  score_R: np.ndarray
  subgroup_R: np.ndarray
  actions: stepwise.ActionTable | None


def advantages(
    batch: Grouped,
    config: schema.AdvantageConfig,
    group: schema.GroupConfig,
    gigpo: schema.GigpoConfig = schema.GigpoConfig(),
) -> np.ndarray:
  """[B, T] float32: each policy token gets what its rollout or step got (E1).

  Number and length of the segments of a rollout do not enter: a member of a
  group is a rollout with one return.

  Args:
    batch: the packed batch.
    config: which estimator.
    group: floor, eps, and whether the return is the outcome alone.
    gigpo: settings of estimator = gigpo.

  Raises:
    ValueError: an estimator that does not exist, or one of `stepwise` on a
      batch that was built without steps.
  """
  value_R = batch.score_R if group.outcome_only else batch.return_R
  subgroups = subgroups_of(batch.subgroup_R)
  mask_BT = np.asarray(batch.segments.joins.policy_mask_BT)
  if config.estimator in stepwise.ESTIMATORS:
    table = batch.actions
    if table is None:
      raise ValueError(
          f'advantage.estimator={config.estimator!r}: the batch was built'
          ' without its steps; give batching.build the anchor.'
      )
    if config.estimator == 'process':
      advantage_J = stepwise.process_actions(
          table, subgroups, eps=group.eps, std_floor=group.std_floor
      )
    else:
      advantage_J = stepwise.gigpo_actions(
          table,
          subgroups,
          return_R=value_R,
          score_R=batch.score_R,
          config=gigpo,
          std_floor=group.std_floor,
      )
    out_BT = np.zeros(mask_BT.size, np.float32)
    out_BT[table.place_J] = advantage_J
    return np.where(mask_BT, out_BT.reshape(mask_BT.shape), np.float32(0.0))
  advantage_R = np.zeros(len(value_R), np.float64)
  compared = compare(
      dict(enumerate(value_R.tolist())),
      subgroups,
      estimator=config.estimator,
      eps=group.eps,
      std_floor=group.std_floor,
  )
  for rollout, advantage in compared.items():
    advantage_R[rollout] = advantage
  rollout_BT = np.asarray(batch.segments.joins.rollout_BT)
  out_BT = np.zeros(mask_BT.shape, np.float32)
  out_BT[mask_BT] = advantage_R[rollout_BT[mask_BT]]
  return out_BT


def subgroups_of(subgroup_R: np.ndarray) -> list[list[int]]:
  """Rollouts of every comparison, in batch order."""
  return [
      np.flatnonzero(subgroup_R == index).tolist()
      for index in np.unique(subgroup_R[subgroup_R >= 0])
  ]
