"""How old the tokens of a rollout are, and what may still be used (O1, O2)."""

from collections.abc import Mapping

import numpy as np

from rl_tpu.config import schema
from rl_tpu.records import records


def oldest_version(rollout: records.Rollout) -> int:
  """Version of the rollout's oldest sampled token (K33).

  Raises:
    ValueError: no token was sampled.
  """
  return min(
      int(s.behaviour_version[s.is_action].min())
      for s in rollout.segments
      if s.is_action.any()
  )


def over_limit(
    rollout: records.Rollout,
    limits: schema.StalenessConfig,
    *,
    current_version: int | None,
    kl: Mapping[str, float],
) -> str:
  """The first limit that discards a rollout.

  Args:
    rollout: with at least one sampled token.
    limits: of the run.
    current_version: policy version being trained; None checks no version.
    kl: KL of the sampler to the policy by rollout id, where it was measured.

  Returns:
    The setting, empty if the rollout is over none.
  """
  checks_version = current_version is not None and limits.over == 'discard'
  if checks_version:
    gap = current_version - oldest_version(rollout)
    if gap > limits.max_version_gap:
      return 'staleness.max_version_gap'
  measured = kl.get(rollout.rollout_id)
  # Not `measured > limit`: a KL that is no number is over every limit.
  if measured is not None and not measured <= limits.max_kl:
    return 'staleness.max_kl'
  limit = limits.max_queue_seconds
  if limit is not None and rollout.t_consumed - rollout.t_enqueued > limit:
    return 'staleness.max_queue_seconds'
  return ''


def oldest_used(
    limits: schema.StalenessConfig, current_version: int
) -> int | None:
  """The oldest version whose tokens train the actor under `over = mask`.

  Args:
    limits: of the run.
    current_version: policy version being trained.

  Returns:
    None where no single token is left out.
  """
  if limits.over != 'mask':
    return None
  return current_version - limits.max_version_gap


def gate(
    version: np.ndarray, policy: np.ndarray, oldest: int | None
) -> np.ndarray:
  """Tokens of the policy mask that are left out for their version alone.

  Args:
    version: policy version of every token, -1 off the actions.
    policy: policy mask (G16).
    oldest: the oldest version that is used; None leaves nothing out.
  """
  if oldest is None:
    return np.zeros(len(policy), bool)
  return policy & (version < oldest)
