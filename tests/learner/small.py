"""A small learner and recorded batches, for tests of settings."""

import functools

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.sharding import mesh as mesh_lib
from tests.learner import recorded

MODEL = model_config.DecoderConfig(
    vocab_size=16, width=16, num_layers=1, num_heads=2, num_kv_heads=1,
    head_width=8, mlp_width=16, max_length=64,
)


@functools.cache
def _params() -> decoder.Params:
  return decoder.init_params(MODEL, jax.random.key(3))


def params() -> decoder.Params:
  """A copy: an update donates what the state was made of."""
  return jax.tree.map(jnp.copy, _params())


def learner(
    devices: int = 1,
    *,
    critic: schema.CriticConfig = schema.CriticConfig(),
    gae: schema.GaeConfig = schema.GaeConfig(),
    memory: schema.MemoryConfig = schema.MemoryConfig(),
    optimizer: schema.OptimizerConfig = schema.OptimizerConfig(
        learning_rate=1e-2
    ),
    **settings,
) -> learner_lib.Learner:
  """A learner on the first devices; settings are those of the objective."""
  return learner_lib.Learner(
      MODEL,
      mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices]),
      model=schema.ModelConfig(remat='none'),
      temperature=1.0,
      objective=objective.Settings(**settings),
      gae_config=gae,
      critic=critic,
      actor_optimizer=optimizer,
      critic_optimizer=optimizer,
      memory=memory,
  )


def updater(
    made: learner_lib.Learner,
    *,
    critic: schema.CriticConfig = schema.CriticConfig(),
    kl: schema.KlConfig = schema.KlConfig(),
    policy: schema.PolicyConfig = schema.PolicyConfig(),
    reference=None,
) -> update_lib.Updater:
  """Section L17 with one pass and one epoch."""
  return update_lib.Updater(
      made,
      batching=schema.BatchingConfig(),
      critic=critic,
      kl=kl,
      policy=policy,
      reference=reference,
  )


def batch(
    rows: int = 16,
    *,
    count: int = 12,
    seed: int = 4,
    loss: schema.LossConfig = schema.LossConfig(),
) -> batching.Batch:
  """Recorded rollouts of one to four segments, packed."""
  return batching.build(
      admission.admit_all(
          recorded.rollouts(MODEL.vocab_size, count, seed=seed)
      ),
      batching=schema.BatchingConfig(row_length=64, rows_per_microbatch=rows),
      gae=schema.GaeConfig(),
      critic=schema.CriticConfig(),
      loss=loss,
      compaction=schema.CompactionConfig(),
  )


def step(updater: update_lib.Updater, state, built: batching.Batch, **options):
  """Scores a batch and updates on it."""
  scored = updater.score(
      state, built.segments, built.minibatches,
      update=options.pop('update', 0),
  )
  advantage_BT = options.pop('advantage_BT', scored.estimates.advantage_BT)
  return updater.update(
      state,
      scored,
      advantage_BT=advantage_BT,
      policy_weight_BT=built.policy_weight_BT,
      critic_weight_BT=built.critic_weight_BT,
      minibatches=built.minibatches,
      train_actor=options.pop('train_actor', True),
      **options,
  )
