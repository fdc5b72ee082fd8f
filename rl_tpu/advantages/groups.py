"""Advantages from comparing rollouts of one task (section 5, E1 to E7).

The member of a group is a rollout with one return, never a segment. All
statistics are float64 on the host.
"""

from collections.abc import Hashable, Mapping, Sequence
import dataclasses

import numpy as np

ESTIMATORS = ('grpo', 'dr_grpo', 'rloo')
ON_MISMATCH = ('split', 'drop', 'error')


def is_degenerate(std: float, values: np.ndarray, *, floor: float) -> bool:
  """G15: the spread of `values` is rounding, nothing that can be learnt from.

  The one comparator of every floor: std <= floor * max(1, max |x|).
  """
  largest = float(np.max(np.abs(values))) if len(values) else 0.0
  return float(std) <= floor * max(1.0, largest)


def grpo(
    rewards: Sequence[float], *, eps: float, std_floor: float
) -> np.ndarray:
  """(R - mean) / (population std + eps), exactly 0 where degenerate (E3)."""
  returns = np.asarray(rewards, np.float64)
  std = np.std(returns)
  if is_degenerate(std, returns, floor=std_floor):
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
    value: its return (E2).
  """

  rollout_id: str
  key: Hashable
  group: Hashable
  value: float = 0.0


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


def advantages(
    returns: Mapping[str, float],
    subgroups: Sequence[Sequence[str]],
    *,
    estimator: str,
    eps: float,
    std_floor: float,
) -> tuple[dict[str, float], int]:
  """One number per rollout, given to all its action tokens (E1).

  Args:
    returns: return of every rollout by id (E2).
    subgroups: `Partition.subgroups`.
    estimator: grpo, dr_grpo or rloo.
    eps: added to the standard deviation (grpo).
    std_floor: at or below it a group teaches nothing (G15).

  Returns:
    Advantage by rollout id, and how many subgroups had no signal.

  Raises:
    ValueError: an estimator that does not exist.
  """
  out: dict[str, float] = {}
  degenerate = 0
  for ids in subgroups:
    values = np.asarray([returns[i] for i in ids], np.float64)
    if estimator == 'grpo':
      result = grpo(values, eps=eps, std_floor=std_floor)
    elif estimator == 'dr_grpo':
      result = dr_grpo(values)
    elif estimator == 'rloo':
      result = rloo(values)
    else:
      raise ValueError(
          f'advantage.estimator must be gae, {", ".join(ESTIMATORS)}, got'
          f' {estimator!r}.'
      )
    degenerate += is_degenerate(np.std(values), values, floor=std_floor)
    out.update(zip(ids, result.tolist()))
  return out, degenerate


def broadcast(
    advantage_R: np.ndarray, rollout_BT: np.ndarray, policy_mask_BT: np.ndarray
) -> np.ndarray:
  """[B, T] float32: each policy token gets its rollout's advantage (E1)."""
  rollout_BT = np.where(policy_mask_BT, rollout_BT, 0)
  spread_BT = np.asarray(advantage_R, np.float64)[rollout_BT]
  return np.where(policy_mask_BT, spread_BT, 0.0).astype(np.float32)
