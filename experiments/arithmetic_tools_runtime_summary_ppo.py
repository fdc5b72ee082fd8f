"""The main job with summaries that the runtime writes.

Question: how much of the main job's difficulty lies in writing the summary?

Expected: the same curve or a faster one; the summary is exact by construction
and no action token is spent on it.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/arithmetic_tools_runtime_summary_ppo.py
"""

import dataclasses
import pathlib

from rl_tpu.config import loading
from rl_tpu.config import schema

MAIN_JOB = pathlib.Path(__file__).with_name('arithmetic_tools_ppo.py')


def get_config() -> schema.ExperimentConfig:
  """The main job's settings, the summary's author changed."""
  base = loading.load_experiment(MAIN_JOB)
  return dataclasses.replace(
      base,
      name='arithmetic_tools_runtime_summary_ppo',
      compaction=dataclasses.replace(base.compaction, author='runtime'),
  )
