"""Costs beside the main benchmark: estimator, sampling supports, memory."""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.advantages import gae as gae_lib
from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import recorder
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import termination as term
from tests.bench import __main__ as bench
from tests.bench import parts
from tests.learner import recorded


def _long_rollouts(count: int) -> list[records.Rollout]:
  """Runs of one to twelve segments, 5000 tokens on average, turns of 40."""
  rng = np.random.default_rng(3)
  ids = np.arange(2, 4096, dtype=np.int32)
  turn_length, observed = 40, 20
  out = []
  for number in range(count):
    segments = int(rng.integers(1, 13))
    turns = int(rng.integers(50, 116))
    writer = recorder.Recorder(f'r{number}', 'env@0', {})
    last = np.linspace(0, turns, segments + 1).astype(int)[1:]
    for turn in range(turns):
      if turn == 0 or turn in last[:-1]:
        writer.open(ids[:30])
      writer.sampled(
          ids[:turn_length],
          np.full(turn_length, -3.0),
          np.zeros(turn_length, np.int32),
          turn_id=turn,
          sampling=recorded.SAMPLING,
      )
      writer.observe(ids[:observed])
      if turn + 1 in last[:-1]:
        writer.cut(term.Cut.COMPACTION)
    out.append(
        recorded.rollout(
            writer, f'r{number}', task_id=f'{number}', terminal_reward=1.0,
            solved=True,
        )
    )
  return out


def estimator() -> dict[str, float]:
  """Layout on the host and recursion on the device, up to 10 M tokens.

  For 250, 500, 1000 and 2000 rollouts of up to twelve segments: seconds of
  `batching.build` and of the full recursion, and the process's peak memory
  without the records.
  """
  config = schema.GaeConfig(
      gamma=0.99, lambda_policy=schema.LambdaConfig(length_adaptive=1.5)
  )
  call = jax.jit(
      lambda j, v, b: gae_lib.estimate(j, v, b, gae=config, level='token')
  )
  peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  every = _long_rollouts(2000)
  held = peak()
  figures = {}
  for count in (250, 500, 1000, 2000):
    admitted = admission.admit_all(every[:count])
    start = time.perf_counter()
    batch = batching.build(
        admitted,
        batching=schema.BatchingConfig(row_length=8192, rows_per_microbatch=8),
        gae=config,
        critic=schema.CriticConfig(),
        loss=schema.LossConfig(),
        compaction=schema.CompactionConfig(),
    )
    seconds = time.perf_counter() - start
    joins = jax.tree.map(jnp.asarray, batch.segments.joins)
    values = jnp.zeros(joins.reward_BT.shape, jnp.float32)
    bootstrap = jnp.zeros(joins.final_R.shape)
    timing = bench.timed(
        lambda: jax.block_until_ready(call(joins, values, bootstrap)),
        warmup=1,
        repeat=5,
    )
    tokens = sum(r.num_tokens for r in every[:count])
    figures |= {
        f'estimator_{count}_tokens': tokens,
        f'estimator_{count}_segments': sum(
            r.num_segments for r in every[:count]
        ),
        f'estimator_{count}_build_s': round(seconds, 2),
        f'estimator_{count}_recursion_s': round(timing['best'], 3),
        f'estimator_{count}_gib': round(peak() - held, 2),
    }
  figures['estimator_records_gib'] = round(held, 2)
  return figures


def support() -> dict[str, float]:
  """What recording and replaying sampling supports costs (L16, R5).

  Rollouts 16 x (32 + 128) at T = 1, with top-k 64 whose support is not
  recorded, and with it recorded; then log-probs of 16 x 512 tokens without and
  with 64 recorded ids a token.
  """
  tokens = 16 * parts.NEW
  lengths = np.full(16, parts.NEW)
  figures = {}
  for name, size, settings in (
      ('whole', 0, {}),
      ('top_k_unrecorded', 0, {'top_k': 64}),
      ('top_k', 64, {'top_k': 64}),
  ):
    seconds = parts.sampled(parts.make_sampler(size), lengths, **settings)
    figures[f'support_{name}_tok_s'] = round(tokens / seconds['best'], 1)
  learner, params = parts.make_learner()
  rows = parts.make_rows(learner)
  rng = np.random.default_rng(0)
  with_ids = [
      part._replace(
          support_BTM=learner.place_rows(
              np.concatenate(
                  [
                      np.asarray(part.token_BT)[..., None],
                      rng.integers(3, 4096, (*part.token_BT.shape, 63)),
                  ],
                  axis=-1,
              ).astype(np.int32)
          )
      )
      for part in rows
  ]
  for name, each in (('whole', rows), ('top_k', with_ids)):
    seconds = bench.timed(
        lambda each=each: jax.block_until_ready(learner.logp(params, each)),
        warmup=1,
        repeat=4,
    )
    figures[f'support_{name}_logp_s'] = round(seconds['best'], 3)
  return figures


def memory() -> dict[str, float]:
  """Memory of the update's programs by part, as the compiler reports it (C10).

  MiB of arguments, outputs and temporaries of one microbatch of the actor's
  and the critic's gradient, with a critic of its own and with a shared
  backbone, and of the state that is held between them.
  """
  figures = {}
  for sharing in ('separate', 'shared_backbone'):
    learner, params = parts.make_learner(sharing=sharing)
    state = learner.init_state(params, with_critic=True)
    rows = parts.make_rows(learner)[0]
    zeros_BT = np.zeros(rows.token_BT.shape, np.float32)
    part = batch_lib.Minibatch(rows, *[learner.place_rows(zeros_BT)] * 7)
    size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree)) / 2**20
    figures[f'memory_{sharing}_state_mib'] = round(size(state), 1)
    programs = {'actor': (learner.update_actor, state.actor)}
    if state.critic is not None:
      programs['critic'] = (learner.update_critic, state.critic)
    for name, (update, trainable) in programs.items():
      lowered = jax.jit(update, donate_argnums=0).lower(trainable, [part])
      found = lowered.compile().memory_analysis()
      for key in ('argument', 'output', 'temp'):
        mib = getattr(found, f'{key}_size_in_bytes') / 2**20
        figures[f'memory_{sharing}_{name}_{key}_mib'] = round(mib, 1)
  return figures
