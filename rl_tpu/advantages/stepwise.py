"""Advantages that differ from step to step of a rollout (E5, E6).

The members of a group are rollouts; what is compared inside them are steps
(process supervision) or turns that start in the same state (GiGPO). All
statistics are float64 on the host.
"""

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from rl_tpu.config import schema
from rl_tpu.types import statistics

ESTIMATORS = ('process', 'gigpo')
NORMS = ('std', 'none')


@dataclasses.dataclass(frozen=True, eq=False)
class ActionTable:
  """The actions of a packed batch in time order, on the host.

  Attributes:
    place_J: flat index (row * T + position) of every action.
    rollout_J: its rollout.
    turn_J: its turn; turns of the batch are numbered in time order.
    reward_J: float64 step reward after G5, weighted and normalised; the
      terminal reward is not in it.
    is_step_J: a step reward was given here, be it 0 (E5).
    anchor_U: int, equal where two turns start in the same state (E6); -1 where
      the state has no name.
  """

  place_J: np.ndarray
  rollout_J: np.ndarray
  turn_J: np.ndarray
  reward_J: np.ndarray
  is_step_J: np.ndarray
  anchor_U: np.ndarray


def process(
    step_rewards: Sequence[Sequence[float]],
    ends: Sequence[Sequence[int]],
    num_actions: Sequence[int],
    *,
    eps: float,
    std_floor: float,
) -> list[np.ndarray]:
  """Process supervision (E5; DeepSeekMath 2402.03300, 4.1.3).

  All step rewards of all members are brought to r~ = (r - mean) / (population
  std + eps), to 0 where they are degenerate. A token's advantage is the sum of
  r~ over the steps of its rollout that end at or after it.

  Args:
    step_rewards: reward of every step, by member.
    ends: action index of the last token of every step, by member.
    num_actions: actions of every member.
    eps: added to the standard deviation.
    std_floor: at or below it the steps teach nothing (G15).

  Returns:
    Advantage of every action, by member; 0 after the last step.
  """
  together = np.concatenate([np.asarray(r, np.float64) for r in step_rewards])
  centred = scaled(together, norm='std', eps=eps, std_floor=std_floor)
  stops = np.cumsum([len(r) for r in step_rewards])[:-1]
  out = []
  for part, at, length in zip(np.split(centred, stops), ends, num_actions):
    per_action = np.zeros(length, np.float64)
    np.add.at(per_action, np.asarray(at, np.int64), part)
    out.append(_suffix_sum(per_action))
  return out


@dataclasses.dataclass(frozen=True, eq=False)
class Gigpo:
  """E6 by its parts; lists run over the members, arrays over their turns.

  Attributes:
    episode: advantage of every member's return.
    step_return: discounted rewards from every turn on.
    step: advantage of every turn within its step group.
    total: episode + omega * step.
  """

  episode: np.ndarray
  step_return: list[np.ndarray]
  step: list[np.ndarray]
  total: list[np.ndarray]


def gigpo(
    returns: Sequence[float],
    turn_rewards: Sequence[Sequence[float]],
    anchors: Sequence[Sequence[Hashable | None]],
    *,
    config: schema.GigpoConfig,
    std_floor: float,
) -> Gigpo:
  """Groups of equal states inside a group of rollouts (E6, 2505.10978).

  Args:
    returns: return of every member (E2).
    turn_rewards: rewards of every turn by member, the terminal reward in the
      last one.
    anchors: state that every turn starts in; None has no step group.
    config: gamma, omega and norm.
    std_floor: at or below it a comparison teaches nothing (G15).

  Raises:
    ValueError: a norm that does not exist.
  """
  values = np.asarray(returns, np.float64)
  episode = scaled(values, norm=config.norm, eps=0.0, std_floor=std_floor)
  step_return = [
      discounted(rewards, gamma=config.gamma) for rewards in turn_rewards
  ]
  step = [np.zeros(len(part), np.float64) for part in step_return]
  groups: dict[Hashable, list[tuple[int, int]]] = {}
  for member, places in enumerate(anchors):
    for turn, anchor in enumerate(places):
      if anchor is not None:
        groups.setdefault(anchor, []).append((member, turn))
  for places in groups.values():
    found = scaled(
        np.asarray([step_return[m][t] for m, t in places]),
        norm=config.norm,
        eps=0.0,
        std_floor=std_floor,
    )
    for (member, turn), value in zip(places, found):
      step[member][turn] = value
  total = [a + config.omega * s for a, s in zip(episode, step)]
  return Gigpo(episode, step_return, step, total)


def scaled(
    values: np.ndarray, *, norm: str, eps: float, std_floor: float
) -> np.ndarray:
  """x - mean, over std + eps under norm = std; 0 where degenerate (E3, E4).

  Under norm = none nothing is divided and the floor does not apply.

  Raises:
    ValueError: a norm that does not exist.
  """
  if norm not in NORMS:
    raise ValueError(
        f'gigpo.norm must be one of {", ".join(NORMS)}, got {norm!r}.'
    )
  values = np.asarray(values, np.float64)
  if not values.size:
    return values
  if norm == 'none':
    return values - np.mean(values)
  std = np.std(values)
  if statistics.is_degenerate(std, values, floor=std_floor):
    return np.zeros_like(values)
  return (values - np.mean(values)) / (std + eps)


def discounted(rewards: Sequence[float], *, gamma: float) -> np.ndarray:
  """sum over k >= t of gamma^(k - t) r_k, for every t."""
  out = np.asarray(rewards, np.float64).copy()
  for turn in range(len(out) - 2, -1, -1):
    out[turn] += gamma * out[turn + 1]
  return out


def _suffix_sum(values: np.ndarray) -> np.ndarray:
  return np.cumsum(values[::-1])[::-1]


def process_actions(
    table: ActionTable,
    subgroups: Sequence[Sequence[int]],
    *,
    eps: float,
    std_floor: float,
) -> np.ndarray:
  """[J] advantage of every action under process supervision (E5).

  Args:
    table: actions of the batch.
    subgroups: rollouts that are compared.
    eps: added to the standard deviation.
    std_floor: the floor of E3.
  """
  out_J = np.zeros(len(table.place_J), np.float64)
  spans = _spans(table.rollout_J)
  for members in subgroups:
    members = [m for m in members if m in spans]
    steps = [np.flatnonzero(table.is_step_J[spans[m]]) for m in members]
    parts = process(
        [table.reward_J[spans[m]][at] for m, at in zip(members, steps)],
        steps,
        [spans[m].stop - spans[m].start for m in members],
        eps=eps,
        std_floor=std_floor,
    ) if members else []
    for member, part in zip(members, parts):
      out_J[spans[member]] = part
  return out_J


def gigpo_actions(
    table: ActionTable,
    subgroups: Sequence[Sequence[int]],
    *,
    return_R: np.ndarray,
    score_R: np.ndarray,
    config: schema.GigpoConfig,
    std_floor: float,
) -> np.ndarray:
  """[J] advantage of every action under GiGPO (E6).

  Args:
    table: actions of the batch.
    subgroups: rollouts that are compared.
    return_R: return that the episodes are compared by (E2).
    score_R: terminal reward, the last turn's beside its own rewards.
    config: gamma, omega, norm.
    std_floor: the floor of E3.
  """
  out_J = np.zeros(len(table.place_J), np.float64)
  spans = _spans(table.rollout_J)
  for members in subgroups:
    members = [m for m in members if m in spans]
    if not members:
      continue
    turns = [table.turn_J[spans[m]] for m in members]
    rewards, anchors = [], []
    for member, turn in zip(members, turns):
      # Turns of a rollout are consecutive numbers.
      reward = np.bincount(
          turn - turn[0], weights=table.reward_J[spans[member]]
      )
      reward[-1] += score_R[member]
      rewards.append(reward)
      anchor = table.anchor_U[turn[0] : turn[-1] + 1]
      anchors.append([None if a < 0 else int(a) for a in anchor])
    found = gigpo(
        [return_R[m] for m in members],
        rewards,
        anchors,
        config=config,
        std_floor=std_floor,
    )
    for member, turn, total in zip(members, turns, found.total):
      out_J[spans[member]] = total[turn - turn[0]]
  return out_J


def _spans(rollout_J: np.ndarray) -> dict[int, slice]:
  """Place of the actions of every rollout; a rollout's are consecutive."""
  found, first, count = np.unique(
      rollout_J, return_index=True, return_counts=True
  )
  return {
      int(r): slice(int(start), int(start + number))
      for r, start, number in zip(found, first, count)
  }
