"""An agent of 106 billion parameters, planned for a pod of 256 chips.

Question: what of GLM-4.5-Air, a mixture of 128 experts, fits v5p:4x8x8 with
actor, critic and reference beside each other?

Expected: BUILD_NOTES.md says what `plan` found. It was never run there.

Hardware: 256 chips of TPU v5p.

Model: as in qwen3_8b_agent.py, the folder here has config.json alone; a run
needs the whole folder of zai-org/GLM-4.5-Air.

Command: python -m rl_tpu plan --experiment=experiments/glm45_air_agent.py
  --topology=v5p:4x8x8
"""

import dataclasses
import pathlib

from rl_tpu.config import loading
from rl_tpu.config import schema

FOLDER = pathlib.Path(__file__).resolve().parent


def get_config() -> schema.ExperimentConfig:
  """The agent of eight billion parameters with another model."""
  base = loading.load_experiment(FOLDER / 'qwen3_8b_agent.py')
  return dataclasses.replace(
      base,
      name='glm45_air_agent',
      mesh=schema.MeshConfig(data=1, fsdp=8, expert=8, tensor=4),
      model=dataclasses.replace(
          base.model, path=str(FOLDER / 'assets' / 'glm45_air')
      ),
      sampler=dataclasses.replace(base.sampler, prefill_rows=64),
      batching=dataclasses.replace(base.batching, rows_per_microbatch=64),
  )
