"""A tiny model folder and experiment that really train, in seconds."""

import dataclasses
import pathlib

import jax

from rl_tpu.checkpointing import contents
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.records import jsonl

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAIN_JOB = ROOT / 'experiments' / 'arithmetic_tools_ppo.py'


def model_folder(folder: str | pathlib.Path, *, seed: int = 0) -> str:
  """Writes a random decoder with the arithmetic tokenizer."""
  folder = pathlib.Path(folder)
  tokenizer = arithmetic_tokenizer.build(folder / 'tokenizer')
  size = tokenizer.get_vocab_size()
  config = model_config.DecoderConfig(
      vocab_size=size,
      usable_vocab=size,
      width=16,
      num_layers=1,
      num_heads=1,
      num_kv_heads=1,
      head_width=16,
      mlp_width=32,
      max_length=256,
  )
  params = decoder.init_params(config, jax.random.key(seed))
  huggingface.save(
      folder / 'model',
      config,
      params,
      tokenizer_files=sorted((folder / 'tokenizer').iterdir()),
  )
  return str(folder / 'model')


def experiment(model: str, **changes) -> schema.ExperimentConfig:
  """The main job made small: eight rollouts a batch, two evaluation tasks."""
  base = loading.load_experiment(MAIN_JOB)
  small = dataclasses.replace(
      base,
      steps=2,
      time_limit_s=None,
      model=dataclasses.replace(base.model, path=model),
      sampling=dataclasses.replace(base.sampling, max_turn_tokens=8),
      sampler=dataclasses.replace(
          base.sampler, slots=8, prefill_rows=8, prefill_buckets=(64, 128)
      ),
      batching=dataclasses.replace(
          base.batching, tasks_per_batch=8, rows_per_microbatch=8,
          row_length=128,
      ),
      critic=dataclasses.replace(
          base.critic, warmup_steps=1, warmup_updates=1, holdout_fraction=0.2
      ),
      evaluation=dataclasses.replace(
          base.evaluation, tasks=4, final_tasks=4, bootstrap=100
      ),
  )
  return dataclasses.replace(small, **changes)


def host_part() -> dict[str, object]:
  """The JSON values of a checkpoint that is read for its arrays alone."""
  return dict.fromkeys(contents.HOST, 0) | {
      'config_hash': contents.digest(0)
  }


def tokens(
    workdir: str | pathlib.Path, step: int
) -> dict[tuple[str, int], list[int]]:
  """Token ids of an update's rollouts by rollout and segment."""
  return {
      (rollout.rollout_id, index): segment.token.tolist()
      for rollout in jsonl.read(jsonl.rollouts_path(workdir, step))
      for index, segment in enumerate(rollout.segments)
  }
