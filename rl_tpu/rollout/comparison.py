"""Which admitted rollouts may be compared with each other (E7)."""

from collections.abc import Sequence

from rl_tpu.advantages import groups
from rl_tpu.records import records


def key(rollout: records.Rollout) -> tuple[str, ...]:
  """What has to agree for two returns to be compared."""
  return (
      rollout.task_id,
      rollout.env_version,
      rollout.env_snapshot,
      rollout.permissions_hash,
      rollout.tool_set_hash,
      rollout.verifier_id,
      rollout.verifier_version,
  )


def subgroups(
    rollouts: Sequence[records.Rollout], *, min_size: int
) -> dict[str, int]:
  """Subgroup of every rollout that has enough comparable siblings, by id.

  Rollouts of one group (of one task, where no group is named) under different
  conditions are split; a part below `min_size` is left out.
  """
  members = [
      groups.Member(
          rollout.rollout_id, key(rollout), rollout.group_id or rollout.task_id
      )
      for rollout in rollouts
  ]
  parts = groups.partition(members, min_size=min_size)
  return {
      rollout_id: index
      for index, ids in enumerate(parts.subgroups)
      for rollout_id in ids
  }
