"""GSPO (arXiv 2507.18071): the ratio of the whole rollout, clipped.

Question: does a ratio per rollout, its mean over all segments, change what
GRPO learns?

Expected: much as grpo: with one pass over a batch the ratio stays near 1.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/gspo.py
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
      name='gspo',
      batching=dataclasses.replace(base.batching, tasks_per_batch=16),
      group=schema.GroupConfig(size=4),
      critic=schema.CriticConfig(),
      advantage=schema.AdvantageConfig(estimator='grpo'),
      policy=dataclasses.replace(base.policy, loss='gspo'),
      loss=dataclasses.replace(base.loss, aggregation='rollout_mean'),
  )
