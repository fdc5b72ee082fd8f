"""GRPO (arXiv 2402.03300) over rollouts: groups of four, no critic.

Question: how far does a group baseline come with the same number of rollouts?

Expected: the outcome needs every answer, so most groups start without spread;
0.8 after about as many tokens as PPO with a tuned critic.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/grpo.py
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
      name='grpo',
      batching=dataclasses.replace(base.batching, tasks_per_batch=16),
      group=schema.GroupConfig(size=4),
      critic=schema.CriticConfig(),
      advantage=schema.AdvantageConfig(estimator='grpo'),
      loss=dataclasses.replace(base.loss, aggregation='rollout_mean'),
  )
