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

MAIN_JOB = pathlib.Path(__file__).with_name('arithmetic_tools_ppo.py')


def get_config() -> schema.ExperimentConfig:
  """The main job with another learning rule."""
  base = loading.load_experiment(MAIN_JOB)
  return dataclasses.replace(
      base,
      name='process_grpo',
      batching=dataclasses.replace(base.batching, tasks_per_batch=16),
      group=schema.GroupConfig(size=4),
      critic=schema.CriticConfig(),
      advantage=schema.AdvantageConfig(estimator='process'),
      reward=dataclasses.replace(
          base.reward,
          weights={'terminal': 1.0, 'sub_answer': 0.5, 'tool_valid': 0.1},
      ),
      loss=dataclasses.replace(base.loss, aggregation='rollout_mean'),
  )
