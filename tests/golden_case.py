"""A case of the golden files as training would see it."""

from typing import Any

import numpy as np

from rl_tpu.config import schema
from tests import batch_cases
from tests import golden_io


def run(
    golden: dict[str, Any],
    rollouts: list[dict[str, Any]] | None = None,
    cut: str | None = None,
    **options: Any,
) -> batch_cases.Outcome:
  """A golden case as training would see it."""
  config = golden['config']
  rollouts = golden['rollouts'] if rollouts is None else rollouts
  values, kl = {}, None
  if config['kl']['in'] == 'reward':
    kl = {}
  for rollout in rollouts:
    for segment in rollout['segments']:
      key = rollout['rollout_id'], segment['segment_index']
      values[key] = segment['value'], segment['final_value']
      if kl is not None:
        gap = np.subtract(segment['logp_base'], segment['logp_ref'])
        kl[key] = config['kl']['coef'] * gap
  return batch_cases.run(
      [golden_io.rollout(r) for r in rollouts],
      values,
      gae=golden_io.gae_config(config, cut),
      level=config['critic_level'],
      rules=golden_io.rules(config),
      data=schema.DataConfig(
          allow_dropped_prefix=config['allow_dropped_prefix']
      ),
      kl=kl,
      summary_in_policy_loss=config['summary_in_policy_loss'],
      **options,
  )


def columns(outcome: batch_cases.Outcome) -> dict[str, np.ndarray]:
  """Arrays of an outcome under the names of the files."""
  estimates, joins = outcome.estimates, outcome.batch.segments.joins
  return {
      'delta': estimates.delta_BT,
      'advantage': estimates.advantage_BT,
      'return': estimates.return_BT,
      'reward_effective': estimates.reward_BT,
      'policy_mask': joins.policy_mask_BT,
      'critic_mask': joins.critic_mask_BT,
  }
