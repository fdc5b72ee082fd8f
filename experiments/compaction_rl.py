"""CompactionRL (arXiv 2607.05378): advantages scaled by their block's position.

Question: how does scaling each block's own advantage compare with a trace over
the cuts?

Expected: between the main job and `gae.cut=cut_terminal`: credit crosses the
cuts, but the state after a cut is not valued.

Hardware: a mesh of eight CPU devices, two cores.

Command: bash launch/local.sh experiments/compaction_rl.py
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
      name='compaction_rl',
      gae=dataclasses.replace(base.gae, cut='position_scaled'),
  )
