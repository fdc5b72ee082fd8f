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

GRPO = pathlib.Path(__file__).with_name('grpo.py')


def get_config() -> schema.ExperimentConfig:
  """GRPO with one thing changed."""
  base = loading.load_experiment(GRPO)
  return dataclasses.replace(
      base,
      name='gigpo',
      advantage=schema.AdvantageConfig(estimator='gigpo'),
  )
