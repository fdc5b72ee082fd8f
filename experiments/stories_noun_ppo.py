"""A pretrained story model learns to come back to what its line names.

Question: does PPO with a critic move a real pretrained model, and does what it
learns hold for nouns that it was not trained on, with its language kept?

Expected: at temperature 1 the trained nouns rise from 0.15 to 0.9 in 16 updates
(164,000 sampled tokens) and to 0.96 in 32; the held-out ones rise from 0.13 to
0.8 with them. The policy is then 0.33 nats a token away from the model that it
started as, most of it on the first word. Only adapters on attention are
trained: with all parameters the trained nouns are learned by heart and the
held-out ones fall behind.

Hardware: a mesh of CPU devices, two cores. Of a model this small two devices
make more than eight: XLA_FLAGS=--xla_force_host_platform_device_count=2.

Model: stories260K of karpathy/tinyllamas (Hugging Face, folder stories260K, MIT
licence): 260,032 parameters, trained on TinyStories. Its two files become a
Hugging Face folder with

  python -m rl_tpu import-llama2c --checkpoint=stories260K.bin
    --tokenizer=tok512.bin --out=stories260k

It has no chat template and gets one that only joins the texts.

Command: bash launch/local.sh experiments/stories_noun_ppo.py
  --set model.path=stories260k

The nouns that it is trained on, judged as the held-out ones are:

  python -m rl_tpu evaluate --workdir=runs/stories_noun_ppo
    --checkpoint=latest --set tasks.settings.evaluated=trained
"""

import pathlib

from rl_tpu.config import schema

TEMPLATE = (
    pathlib.Path(__file__).resolve().parent
    / 'assets' / 'stories' / 'plain_text.jinja'
)


def get_config() -> schema.ExperimentConfig:
  """Single rollout per task, token-level loss, own critic."""
  return schema.ExperimentConfig(
      name='stories_noun_ppo',
      steps=32,
      mesh=schema.MeshConfig(data=-1),
      model=schema.ModelConfig(
          chat_template=str(TEMPLATE),
          remat='none',
          # Coming back to a word is attention's work; the rest of the model
          # could only learn the trained nouns by heart.
          lora=schema.LoraConfig(
              rank=16, targets=('query', 'key', 'value', 'out')
          ),
      ),
      environment=schema.EnvironmentConfig(
          target='rl_tpu.environments.stories:Stories',
          settings={'replies': 1},
      ),
      verifier=schema.VerifierConfig(
          target='rl_tpu.verifiers.stories:NounVerifier',
      ),
      tasks=schema.TasksConfig(
          target='rl_tpu.tasks.stories:NounTasks',
          settings={'evaluated': 'held_out'},
      ),
      budgets=schema.budget_lib.Budget(window=64),
      compaction=schema.CompactionConfig(mode='off'),
      sampling=schema.SamplingConfig(
          temperature=1.0, stop=(), max_turn_tokens=40
      ),
      sampler=schema.SamplerConfig(
          slots=128,
          tokens_per_call=8,
          prefill_buckets=(24, 64),
          prefill_rows=64,
      ),
      batching=schema.BatchingConfig(
          tasks_per_batch=256,
          minibatches=2,
          row_length=64,
          rows_per_microbatch=64,
      ),
      gae=schema.GaeConfig(
          lambda_policy=schema.LambdaConfig(fixed=1.0),
          lambda_critic=schema.LambdaConfig(fixed=1.0),
      ),
      advantage=schema.AdvantageConfig(norm='batch'),
      kl=schema.KlConfig(in_='loss', coef=0.05),
      critic=schema.CriticConfig(
          warmup_steps=2,
          warmup_updates=4,
          head_bias=0.2,
      ),
      actor_optimizer=schema.OptimizerConfig(
          learning_rate=4e-3, schedule='linear', warmup_steps=8,
          decay_steps=64, end_fraction=0.1, eps=1e-6,
      ),
      critic_optimizer=schema.OptimizerConfig(learning_rate=4e-3, eps=1e-6),
      evaluation=schema.EvaluationConfig(
          every=8, tasks=100, final_tasks=400, temperatures=(1.0,)
      ),
      checkpoint=schema.CheckpointConfig(every=8),
  )
