"""GiGPO (arXiv 2505.10978): rollouts compared, and turns in equal states.

Question: does comparing turns that were taken in the same state help a group
estimator?

Expected: more signal than grpo per rollout: the first turns of a group share a
state.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/gigpo.py
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
      name='gigpo',
      batching=dataclasses.replace(base.batching, tasks_per_batch=16),
      group=schema.GroupConfig(size=4),
      critic=schema.CriticConfig(),
      advantage=schema.AdvantageConfig(estimator='gigpo'),
      loss=dataclasses.replace(base.loss, aggregation='rollout_mean'),
  )
