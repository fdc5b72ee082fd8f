"""Which admitted rollouts may be compared with each other (E7, E11)."""

import dataclasses
from collections.abc import Sequence

from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.records import records


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A rollout that the other rules let through.

  Attributes:
    rollout: its record.
    scale_id: of the scale of its rewards.
  """

  rollout: records.Rollout
  scale_id: str = ''


@dataclasses.dataclass(frozen=True)
class Subgroups:
  """The comparisons of a batch.

  Attributes:
    of: subgroup of every rollout that has enough comparable siblings, by id.
    mismatched: groups whose members were under different conditions.
    shared_tenant: members that shared their tenant with a sibling (E11).
  """

  of: dict[str, int]
  mismatched: int
  shared_tenant: int


def key(rollout: records.Rollout, scale_id: str = '') -> tuple[str, ...]:
  """What has to agree for two returns to be compared."""
  return (
      rollout.task_id,
      rollout.env_version,
      rollout.env_snapshot,
      rollout.permissions_hash,
      rollout.tool_set_hash,
      rollout.verifier_id,
      rollout.verifier_version,
      scale_id,
  )


def subgroups(
    candidates: Sequence[Candidate],
    ended: Sequence[records.Rollout],
    *,
    config: schema.GroupConfig,
) -> Subgroups:
  """Splits the groups of a batch into comparable subgroups.

  Rollouts of one group (of one task, where no group is named) under different
  conditions are treated by `group.on_mismatch`; a part below `group.min_size`
  is left out.

  Args:
    candidates: members, in the order of the batch.
    ended: all rollouts of the batch. One that is not trained on may have acted
      in a sibling's tenant all the same.
    config: min_size and on_mismatch.

  Raises:
    ValueError: a mismatch under `group.on_mismatch = error`.
  """
  disturbed = shared_tenants(ended)
  members = []
  for candidate in candidates:
    rollout = candidate.rollout
    conditions = key(rollout, candidate.scale_id)
    if rollout.rollout_id in disturbed:
      # A sibling could change what it saw, so nobody was in its place.
      conditions += (f'tenant of {rollout.rollout_id}',)
    members.append(
        groups.Member(rollout.rollout_id, conditions, group_of(rollout))
    )
  parts = groups.partition(
      members, min_size=config.min_size, on_mismatch=config.on_mismatch
  )
  keys: dict[str, set[tuple[str, ...]]] = {}
  for member in members:
    keys.setdefault(member.group, set()).add(member.key)
  return Subgroups(
      of={
          rollout_id: index
          for index, ids in enumerate(parts.subgroups)
          for rollout_id in ids
      },
      mismatched=sum(len(found) > 1 for found in keys.values()),
      shared_tenant=sum(m.rollout_id in disturbed for m in members),
  )


def group_of(rollout: records.Rollout) -> str:
  """The group a rollout was sampled in; its task where none is named."""
  return rollout.group_id or rollout.task_id


def shared_tenants(rollouts: Sequence[records.Rollout]) -> set[str]:
  """Ids of rollouts that were in one tenant with a sibling at once (E11)."""
  by_tenant: dict[tuple[str, str], list[records.Rollout]] = {}
  for rollout in rollouts:
    if rollout.tenant_id is not None:
      place = group_of(rollout), rollout.tenant_id
      by_tenant.setdefault(place, []).append(rollout)
  found = set()
  for members in by_tenant.values():
    members.sort(key=lambda r: r.t_start)
    latest = None
    for rollout in members:
      # Of those before it, the one that ends last is the one it can overlap.
      if latest is not None and rollout.t_start < latest.t_end:
        found |= {latest.rollout_id, rollout.rollout_id}
      if latest is None or rollout.t_end > latest.t_end:
        latest = rollout
  return found
