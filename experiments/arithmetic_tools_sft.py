"""Supervised warm start of the main job's policy.

Question: none; it makes the start. More than half of the problems are answered
without the tool, so the greedy policy starts out wrong and reinforcement
learning has something to find.

Expected: greedy success about 0.0, at temperature 1 about 0.1.

Hardware: two CPU cores, about thirteen minutes.

Command: python -m rl_tpu sft --experiment=experiments/arithmetic_tools_sft.py
  --workdir=runs/arithmetic_tools_sft
"""

import dataclasses
import pathlib

from rl_tpu.config import loading
from rl_tpu.config import schema

MAIN_JOB = pathlib.Path(__file__).with_name('arithmetic_tools_ppo.py')


def get_config() -> schema.ExperimentConfig:
  """The main job's world, with a scripted policy to imitate."""
  base = loading.load_experiment(MAIN_JOB)
  return dataclasses.replace(
      base,
      name='arithmetic_tools_sft',
      time_limit_s=None,
      batching=dataclasses.replace(
          base.batching, row_length=256, rows_per_microbatch=32
      ),
      sft=schema.SftConfig(
          target=(
              'rl_tpu.environments.arithmetic_demonstrations:ScriptedPolicy'
          ),
          settings={
              'skip': 0.55,
              'skip_right': 0.0,
              'corrupt_call': 0.002,
              'corrupt_answer': 0.002,
              'corrupt_summary': 0.002,
              'corrupt_report': 0.002,
          },
          steps=1600,
          rollouts_per_step=24,
          optimizer=schema.OptimizerConfig(
              learning_rate=2e-3,
              schedule='cosine',
              warmup_steps=30,
              decay_steps=1570,
              end_fraction=0.02,
              b2=0.98,
              weight_decay=0.01,
          ),
          out=base.model.path,
          tokenizer='rl_tpu.environments.arithmetic_tokenizer:build',
          model={
              'width': 96,
              'num_layers': 3,
              'num_heads': 3,
              'num_kv_heads': 3,
              'head_width': 32,
              'mlp_width': 256,
              'activation': 'relu',
              'rope_theta': 1000.0,
              'max_length': 512,
          },
      ),
  )
