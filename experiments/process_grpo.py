"""Process supervision with groups (DeepSeekMath, arXiv 2402.03300, 4.1.3).

Question: what do rewards for valid calls and right sub-answers add to a group
estimator?

Expected: faster than grpo at the start: a step reward comes long before the
outcome.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/process_grpo.py
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
      name='process_grpo',
      advantage=schema.AdvantageConfig(estimator='process'),
      reward=dataclasses.replace(
          base.reward,
          weights={'terminal': 1.0, 'sub_answer': 0.5, 'tool_valid': 0.1},
      ),
  )
