"""The benchmarked work, through the same functions that training calls."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.advantages import gae as gae_lib
from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.sampler import types as sampler_types
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import batch as batch_lib
from tests.bench import __main__ as bench

MODEL = model_config.DecoderConfig(
    vocab_size=4096,
    width=256,
    num_layers=4,
    num_heads=8,
    num_kv_heads=8,
    head_width=32,
    mlp_width=2048,
    rope_theta=500_000.0,
    norm_eps=1e-5,
    max_length=1024,
)
ROWS, LENGTH, PROMPT, NEW = 16, 512, 32, 128
MICROBATCH = 4


def matrix_rate() -> float:
  """GFLOP/s of float32 products of the update's own shapes."""
  x = jnp.ones((MICROBATCH * LENGTH, MODEL.width), jnp.float32)
  w = jnp.ones((MODEL.width, MODEL.mlp_width), jnp.float32)
  big = jnp.ones((2048, 2048), jnp.float32)
  rates = []
  for a, b in ((x, w), (big, big)):
    product = jax.jit(lambda a, b: a @ b)
    call = lambda: [product(a, b) for _ in range(8)][-1].block_until_ready()
    best = bench.timed(call, warmup=2, repeat=12)['best']
    rates.append(8 * 2 * a.shape[0] * a.shape[1] * b.shape[1] / best / 1e9)
  return max(rates)


def forward_flops(*, with_logits: bool) -> float:
  """Multiply-add operations of one forward pass over the batch, times 2."""
  layer = 4 * MODEL.width**2 + 3 * MODEL.width * MODEL.mlp_width
  dense = MODEL.num_layers * layer
  if with_logits:
    dense += MODEL.width * MODEL.vocab_size
  # Causal attention: half of the T x T products count.
  mixing = MODEL.num_layers * MODEL.width * LENGTH
  return 2.0 * ROWS * LENGTH * (dense + mixing)


def make_learner(**critic) -> tuple[learner_lib.Learner, object]:
  mesh = mesh_lib.make_mesh(schema.MeshConfig())
  learner = learner_lib.Learner(
      MODEL,
      mesh,
      model=schema.ModelConfig(remat='none', logits_chunk=2048),
      temperature=1.0,
      objective=objective.Settings(),
      gae_config=schema.GaeConfig(),
      critic=schema.CriticConfig(value_clip=0.2, **critic),
      actor_optimizer=schema.OptimizerConfig(),
      critic_optimizer=schema.OptimizerConfig(),
  )
  params = decoder.init_params(MODEL, jax.random.key(0))
  return learner, params


def make_rows(learner: learner_lib.Learner) -> list[batch_lib.Rows]:
  rng = np.random.default_rng(0)
  shape = (MICROBATCH, LENGTH)
  parts = []
  for _ in range(ROWS // MICROBATCH):
    mask = np.ones(shape, bool)
    mask[:, :PROMPT] = False
    parts.append(
        learner.place_rows(
            batch_lib.Rows(
                token_BT=rng.integers(3, 4096, shape).astype(np.int32),
                position_BT=np.tile(np.arange(LENGTH, dtype=np.int32), (4, 1)),
                segment_BT=np.tile(
                    np.arange(4, dtype=np.int32)[:, None], LENGTH
                ),
                action_mask_BT=mask,
                behaviour_logp_BT=np.full(shape, -8.3, np.float32),
            )
        )
    )
  return parts


def update() -> dict[str, float]:
  """One actor step and one critic step over 16 x 512 tokens."""
  learner, params = make_learner()
  state = learner.init_state(params, with_critic=True)
  del params
  rng = np.random.default_rng(1)
  part = []
  for rows in make_rows(learner):
    shape = rows.token_BT.shape
    noise = lambda: rng.normal(size=shape).astype(np.float32)
    weight = np.asarray(rows.action_mask_BT, np.float32)
    weight /= ROWS * (LENGTH - PROMPT)
    columns = learner.place_rows(
        (noise(), noise(), noise(), np.full(shape, -8.3, np.float32),
         np.zeros(shape, np.float32), weight, weight)
    )
    part.append(batch_lib.Minibatch(rows, *columns))
  holder = {'actor': state.actor, 'critic': state.critic}
  del state

  def actor():
    holder['actor'], _, report = learner.update_actor(holder['actor'], part)
    report.gradient_norm.block_until_ready()

  def critic():
    holder['critic'], _, report = learner.update_critic(holder['critic'], part)
    report.gradient_norm.block_until_ready()

  actor_s = bench.timed(actor, warmup=1, repeat=4)
  critic_s = bench.timed(critic, warmup=1, repeat=4)
  rate = matrix_rate()
  flops = 3 * sum(forward_flops(with_logits=both) for both in (True, False))
  total = actor_s['best'] + critic_s['best']
  return {
      'matrix_gflops_at_update': round(rate, 1),
      'update_s': round(total, 3),
      'update_s_median': round(actor_s['median'] + critic_s['median'], 3),
      'update_actor_s': round(actor_s['best'], 3),
      'update_critic_s': round(critic_s['best'], 3),
      'update_share_of_matrix_rate': round(flops / total / rate / 1e9, 3),
  }


def scoring() -> dict[str, float]:
  """Old and reference log-probs, values and GAE over 16 x 512 tokens."""
  learner, params = make_learner()
  state = learner.init_state(params, with_critic=True)
  reference = jax.tree.map(jnp.copy, state.actor.params)
  rows = make_rows(learner)
  joins, position = _joins(ROWS, LENGTH)

  def call():
    old = learner.logp(state.actor.params, rows)
    learner.logp(reference, rows)
    heads = learner.value_heads(state.critic.params, rows)
    estimates, _ = learner.estimate(joins, position, heads, None)
    jax.block_until_ready((old, estimates))

  seconds = bench.timed(call, warmup=1, repeat=4)
  rate = matrix_rate()
  flops = 2 * forward_flops(with_logits=True) + forward_flops(with_logits=False)
  return {
      'matrix_gflops_at_scoring': round(rate, 1),
      'scoring_s': round(seconds['best'], 3),
      'scoring_s_median': round(seconds['median'], 3),
      'scoring_share_of_matrix_rate': round(
          flops / seconds['best'] / rate / 1e9, 3
      ),
  }


def _joins(rows: int, length: int) -> tuple[batch_lib.Joins, jax.Array]:
  """Rollouts of four rows each, joined across rows, gaps inside."""
  rng = np.random.default_rng(2)
  action = rng.random((rows, length)) < 0.8
  action[:, :4] = False
  flat = np.flatnonzero(action)
  rollout = np.arange(rows) // 4
  follows = np.full(rows * length, -1, np.int32)
  same = flat[1:] // length == flat[:-1] // length
  follows[flat[:-1][same]] = flat[1:][same] % length
  num = int(rollout.max()) + 1
  count = np.bincount(rollout[flat // length], minlength=num)
  shape = (rows, length)
  row = np.arange(rows)
  goes_on = row % 4 < 3
  joins = batch_lib.Joins(
      transition_mask_BT=action,
      decay_BT=action,
      reward_BT=np.where(action, rng.normal(size=shape), 0).astype(np.float32),
      owner_BT=np.where(action, np.arange(length), -1).astype(np.int32),
      next_BT=follows.reshape(shape),
      rollout_BT=np.repeat(rollout[:, None], length, 1).astype(np.int32),
      segment_BT=np.repeat(row[:, None], length, 1).astype(np.int32),
      policy_mask_BT=action,
      critic_mask_BT=action,
      first_N=np.array(
          [r * length + np.argmax(action[r]) for r in row], np.int32
      ),
      last_N=np.array(
          [r * length + np.flatnonzero(action[r])[-1] for r in row], np.int32
      ),
      owner_N=np.full(rows, -1, np.int32),
      next_N=np.where(goes_on, row + 1, -1).astype(np.int32),
      rollout_N=rollout.astype(np.int32),
      continues_N=goes_on,
      later_N=np.zeros(rows, np.int32),
      final_R=np.array(
          [(r * 4 + 4) * length - 1 for r in range(num)], np.int32
      ),
      bootstrap_R=np.arange(num) % 2 == 0,
      score_R=np.zeros(num, np.float32),
      included_R=np.ones(num, bool),
      decays_R=count.astype(np.float32),
      source_R=np.zeros(num, np.int32),
  )
  position = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
  return jax.tree.map(jnp.asarray, joins), jnp.asarray(position)


def gae(rows: int = 64, length: int = 4096) -> dict[str, float]:
  """The full form on [64, 4096]: two lambdas, joins, gaps, masks."""
  joins, _ = _joins(rows, length)
  values = jax.random.normal(jax.random.key(0), (rows, length))
  bootstrap = jnp.zeros(joins.final_R.shape)
  config = schema.GaeConfig(
      gamma=0.99, lambda_policy=schema.LambdaConfig(length_adaptive=1.5)
  )
  call = jax.jit(
      lambda j, v, b: gae_lib.estimate(j, v, b, gae=config, level='token')
  )
  seconds = bench.timed(
      lambda: jax.block_until_ready(call(joins, values, bootstrap)),
      warmup=2,
      repeat=30,
  )
  return {
      'gae_64x4096_ms': round(seconds['best'] * 1e3, 2),
      'gae_64x4096_ms_median': round(seconds['median'] * 1e3, 2),
  }


def make_sampler(max_support: int = 0) -> sampler_lib.JetStreamSampler:
  """Sixteen slots over the model, with random weights."""
  engine = engine_lib.PolicyEngine(
      decoder_config=MODEL,
      mesh=mesh_lib.make_mesh(schema.MeshConfig()),
      slots=16,
      tokens_per_call=8,
      prefill_buckets=(32,),
      prefill_rows=16,
      max_length=PROMPT + 256,
      dtype='float32',
      max_support=max_support,
  )
  sampler = sampler_lib.JetStreamSampler(engine)
  params = decoder.init_params(MODEL, jax.random.key(0))
  sampler.update_weights(0, params, 'drain')
  return sampler


def sampled(sampler, lengths, **settings) -> dict[str, float]:
  """Seconds to sample that many tokens after prompts of 32, best of five."""
  rng = np.random.default_rng(0)
  count = iter(range(10**9))

  def call():
    for length in lengths:
      number = next(count)
      sampler.submit(
          sampler_types.Request(
              request_id=str(number),
              prompt=rng.integers(3, 4096, PROMPT).astype(np.int32),
              params=sampler_types.SamplingParams(
                  max_tokens=int(length), temperature=1.0, seed=number,
                  **settings,
              ),
          )
      )
    done = 0
    while sampler.busy:
      done += sum(len(c.token) for c in sampler.step())
    assert done == sum(lengths), (done, sum(lengths))

  return bench.timed(call, warmup=2, repeat=5)


def rollout() -> dict[str, float]:
  """Decoded tokens per second, equal and lognormal lengths, T = 1."""
  sampler = make_sampler()
  drawn = np.random.default_rng(0).normal(4.2, 0.7, 48)
  lognormal = np.clip(np.exp(drawn), 8, 224).astype(int)
  equal = np.full(16, NEW)
  result = {}
  for name, lengths in (('equal', equal), ('lognormal', lognormal)):
    seconds = sampled(sampler, lengths)
    tokens = int(lengths.sum())
    for figure, value in (('', 'best'), ('_median', 'median')):
      rate = tokens / seconds[value]
      result[f'rollout_{name}_tok_s{figure}'] = round(rate, 1)
  return result
