"""Groups without spread make room for fresh tasks (E9).

What is replaced was paid for all the same: its rollouts stay in the ledger as
discards of the user's rule, and the extra rounds are counted.
"""

import dataclasses
from collections.abc import Collection

import numpy as np

from rl_tpu.config import schema
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.rollout import chain
from rl_tpu.rollout import comparison
from rl_tpu.rollout import returns
from rl_tpu.rollout import timeline
from rl_tpu.types import statistics
from rl_tpu.types import termination as term

DETAIL = 'a group without spread (group.dynamic_sampling)'


def flat_groups(
    admission: admission_lib.Admission,
    *,
    estimator: str,
    group: schema.GroupConfig,
) -> list[str]:
  """Groups whose comparisons all have no spread (G15), in batch order.

  The spread is that of what the estimator compares: step rewards under
  process supervision, returns under every other.

  Args:
    admission: a judged batch of a group estimator.
    estimator: advantage.estimator.
    group: floor, and whether the return is the outcome alone.
  """
  members = admission.admitted
  flat = timeline.tokens([chain.in_time_order(m.rollout) for m in members])
  acts = timeline.actions(flat, level='token')
  found = returns.rewards(members, flat, acts)
  numbers: dict[int, list[float]] = {}
  if estimator == 'process':
    table = returns.action_table(
        members, flat, acts, place_J=acts.token, step=found.step, anchor='state'
    )
    for action in np.flatnonzero(table.is_step_J):
      subgroup = members[int(acts.rollout[action])].subgroup
      numbers.setdefault(subgroup, []).append(float(found.step[action]))
  else:
    value_R = found.score_R if group.outcome_only else found.return_R
    for member, value in zip(members, value_R):
      numbers.setdefault(member.subgroup, []).append(float(value))
  mixed = {
      subgroup
      for subgroup, values in numbers.items()
      if not statistics.is_degenerate(
          np.std(values), np.asarray(values), floor=group.std_floor
      )
  }
  has_spread: dict[str, bool] = {}
  for member in members:
    name = comparison.group_of(member.rollout)
    has_spread[name] = has_spread.get(name, False) or member.subgroup in mixed
  return [name for name, spread in has_spread.items() if not spread]


def discard_groups(
    admission: admission_lib.Admission, groups: Collection[str]
) -> admission_lib.Admission:
  """The batch without some groups; their rollouts are discards of a rule."""
  kept, discards = [], list(admission.discards)
  for member in admission.admitted:
    if comparison.group_of(member.rollout) not in groups:
      kept.append(member)
      continue
    discards.append(
        admission_lib.Discard(
            member.rollout, term.DiscardReason.FILTERED_BY_USER_RULE, DETAIL
        )
    )
  return dataclasses.replace(
      admission, admitted=tuple(kept), discards=tuple(discards)
  )


def merge(
    first: admission_lib.Admission, second: admission_lib.Admission
) -> admission_lib.Admission:
  """Two judged batches as one; comparisons stay apart."""
  used = [m.subgroup for m in first.admitted if m.subgroup is not None]
  offset = max(used, default=-1) + 1
  moved = tuple(
      member
      if member.subgroup is None
      else dataclasses.replace(member, subgroup=member.subgroup + offset)
      for member in second.admitted
  )
  names = {*first.counters, *second.counters}
  return admission_lib.Admission(
      admitted=first.admitted + moved,
      discards=first.discards + second.discards,
      counters={
          name: first.counters.get(name, 0.0) + second.counters.get(name, 0.0)
          for name in sorted(names)
      },
  )
