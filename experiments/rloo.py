"""RLOO (arXiv 2402.14740): the baseline is the mean of the other rollouts.

Question: what does an unbiased leave-one-out baseline do with groups of four?

Expected: much as grpo, without the division by the deviation.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/rloo.py
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
      name='rloo',
      batching=dataclasses.replace(base.batching, tasks_per_batch=16),
      group=schema.GroupConfig(size=4),
      critic=schema.CriticConfig(),
      advantage=schema.AdvantageConfig(estimator='rloo'),
  )
