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

GRPO = pathlib.Path(__file__).with_name('grpo.py')


def get_config() -> schema.ExperimentConfig:
  """GRPO with one thing changed."""
  base = loading.load_experiment(GRPO)
  return dataclasses.replace(
      base,
      name='gspo',
      policy=dataclasses.replace(base.policy, loss='gspo'),
  )
