"""SAO (arXiv 2607.07508): one rollout per task, DIS on the sampler's log-probs.

Question: does a single rollout with direct importance sampling learn as PPO's
clip does?

Expected: as the main job or a little faster; ratios stay near 1 here, so the
gate drops few tokens.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/sao.py
"""

import dataclasses
import pathlib

from rl_tpu.config import loading
from rl_tpu.config import schema

MAIN_JOB = pathlib.Path(__file__).with_name('arithmetic_tools_ppo.py')


def get_config() -> schema.ExperimentConfig:
  """The main job with another learning rule."""
  base = loading.load_experiment(MAIN_JOB)
  return dataclasses.replace(
      base,
      name='sao',
      policy=dataclasses.replace(base.policy, loss='dis'),
      gae=schema.GaeConfig(
          lambda_policy=schema.LambdaConfig(length_adaptive=1.5),
          lambda_critic=schema.LambdaConfig(fixed=1.0),
      ),
      critic=dataclasses.replace(
          base.critic,
          updates_per_actor_update=2,
          warmup_steps=3,
          freeze=('*/query/*', '*/key/*', '*/value/*', '*/out/*'),
      ),
  )
