"""PPO with a critic and a single rollout per task, in its plain form.

Question: what does critic-based PPO do with textbook settings, before anything
is tuned for the task?

Expected: slower than the main job: one critic pass a batch, both lambdas 0.95,
batch normalisation, no warm-up of the critic.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/ppo.py
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
      name='ppo',
      gae=schema.GaeConfig(
          lambda_policy=schema.LambdaConfig(fixed=0.95),
          lambda_critic=schema.LambdaConfig(fixed=0.95),
      ),
      critic=dataclasses.replace(
          base.critic, warmup_steps=0, updates_per_actor_update=1
      ),
  )
