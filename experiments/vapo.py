"""VAPO (arXiv 2504.05118): decoupled lambdas, asymmetric clip, token loss.

Question: what do a length-adaptive policy lambda and a wider upper clip add to
PPO?

Expected: close to the main job.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/vapo.py
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
      name='vapo',
      gae=schema.GaeConfig(
          lambda_policy=schema.LambdaConfig(length_adaptive=0.05),
          lambda_critic=schema.LambdaConfig(fixed=1.0),
      ),
      clip=schema.ClipConfig(eps_low=0.2, eps_high=0.28),
      advantage=dataclasses.replace(base.advantage, norm='none'),
  )
