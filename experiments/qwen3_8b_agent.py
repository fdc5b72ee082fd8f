"""An agent of eight billion parameters, planned for a pod of 64 chips.

Question: do actor, critic and reference of Qwen3-8B train on one small pod,
64 rows of 8192 tokens an optimizer step, while 256 sequences are decoded in
contexts as long?

Expected: `plan` finds that every program fits v5e:8x8, 15.75 GiB a chip. It
was never run there.

Hardware: 64 chips of TPU v5e.

Model: the folder here has the model's config.json alone, which is all that
`plan` reads. For a run, --set model.path= names the whole Hugging Face folder
of Qwen/Qwen3-8B.

Command: python -m rl_tpu plan --experiment=experiments/qwen3_8b_agent.py
  --topology=v5e:8x8

On v5p:4x4x4 with rows and windows of 32768 tokens:

  python -m rl_tpu plan --experiment=experiments/qwen3_8b_agent.py
    --topology=v5p:4x4x4 --set budgets.window=32768
    --set batching.row_length=32768 --set sampler.prefill_buckets=1024,32768
"""

import pathlib

from rl_tpu.config import schema

CONFIG = pathlib.Path(__file__).resolve().parent / 'assets' / 'qwen3_8b'
PROBLEMS = 40


def get_config() -> schema.ExperimentConfig:
  """The main job's rule and environment, longer by two orders."""
  return schema.ExperimentConfig(
      name='qwen3_8b_agent',
      steps=200,
      mesh=schema.MeshConfig(data=1, fsdp=16, tensor=4),
      model=schema.ModelConfig(
          path=str(CONFIG),
          dtype='bfloat16',
          remat='layer',
          logits_chunk=32768,
      ),
      environment=schema.EnvironmentConfig(
          target='rl_tpu.environments.arithmetic_tools:ArithmeticTools',
          settings={'problems': PROBLEMS},
      ),
      verifier=schema.VerifierConfig(
          target='rl_tpu.verifiers.reasoning_gym:ArithmeticVerifier',
          settings={'partial': 0.5},
      ),
      tasks=schema.TasksConfig(
          target='rl_tpu.tasks.arithmetic:ArithmeticTasks',
          settings={'problems': PROBLEMS},
      ),
      budgets=schema.budget_lib.Budget(turns=200, tokens=24576, window=8192),
      compaction=schema.CompactionConfig(
          mode='window', author='policy', lookahead=1024,
          max_summary_tokens=512,
      ),
      sampling=schema.SamplingConfig(temperature=1.0, max_turn_tokens=512),
      sampler=schema.SamplerConfig(
          slots=256,
          tokens_per_call=16,
          prefill_buckets=(1024, 8192),
          prefill_rows=16,
          # A chip has no room for two copies of what is served.
          publish='replace',
      ),
      batching=schema.BatchingConfig(
          tasks_per_batch=64, row_length=8192, rows_per_microbatch=16
      ),
      kl=schema.KlConfig(in_='loss', coef=0.01),
      critic=schema.CriticConfig(warmup_steps=5),
      # On random ids bfloat16 alone puts them 0.06 apart in the mean.
      alignment=schema.AlignmentConfig(mean_abs=0.1),
      actor_optimizer=schema.OptimizerConfig(learning_rate=1e-6),
      critic_optimizer=schema.OptimizerConfig(learning_rate=5e-6),
  )
