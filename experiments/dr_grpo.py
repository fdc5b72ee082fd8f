"""Dr.GRPO (arXiv 2503.20783): centred returns, fixed length in the loss.

Question: what does the division by deviation and by length change in GRPO?

Expected: much as grpo, with smaller steps for groups of little spread.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/dr_grpo.py
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
      name='dr_grpo',
      batching=dataclasses.replace(base.batching, tasks_per_batch=16),
      group=schema.GroupConfig(size=4),
      critic=schema.CriticConfig(),
      advantage=schema.AdvantageConfig(estimator='dr_grpo'),
      loss=dataclasses.replace(
          base.loss, aggregation='constant', constant=120.0
      ),
  )
