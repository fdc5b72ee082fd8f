"""Tiny engines, requests and a plain reference for the sampler's tests."""

from collections.abc import Sequence
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.sampler import types
from rl_tpu.sharding import mesh as mesh_lib
from tests.models import cases

MAX_LENGTH = 48
MODEL = cases.config(max_length=MAX_LENGTH, qk_norm=True)
PARAMS = functools.cache(lambda seed=0: cases.params(MODEL, seed))


@functools.cache
def mesh(*sizes: int) -> jax.sharding.Mesh:
  """A mesh over the first devices: data, fsdp, tensor, expert."""
  devices = jax.devices()[: math.prod(sizes)]
  return mesh_lib.make_mesh(schema.MeshConfig(*sizes), devices)


@functools.cache
def engine(
    model: config_lib.DecoderConfig = MODEL,
    *,
    K: int = 4,
    slots: int = 4,
    on: tuple[int, ...] = (1, 1, 1),
    buckets: tuple[int, ...] = (8, 32),
    rows: int = 4,
    max_length: int = MAX_LENGTH,
) -> engine_lib.PolicyEngine:
  """An engine; the same settings share one, and so its compiled programs."""
  return engine_lib.PolicyEngine(
      decoder_config=model,
      mesh=mesh(*on),
      slots=slots,
      tokens_per_call=K,
      prefill_buckets=buckets,
      prefill_rows=rows,
      max_length=max_length,
  )


def sampler(
    params=None, *, deterministic: bool = False, **settings
) -> sampler_lib.JetStreamSampler:
  """A sampler that serves version 0."""
  made = sampler_lib.JetStreamSampler(
      engine(**settings), deterministic=deterministic
  )
  made.update_weights(0, PARAMS() if params is None else params)
  return made


def request(name: str, prompt: Sequence[int], **params) -> types.Request:
  """A request; `params` are those of SamplingParams."""
  params = types.SamplingParams(**({'max_tokens': 6} | params))
  return types.Request(name, np.asarray(prompt, np.int32), params)


def drain(
    made: sampler_lib.JetStreamSampler, requests: Sequence[types.Request] = ()
) -> dict[str, types.Completion]:
  """Submits, and steps until nothing is owed."""
  for one in requests:
    made.submit(one)
  done = {}
  while made.busy:
    for completion in made.step():
      assert completion.request_id not in done
      done[completion.request_id] = completion
  return done


def chain_params(
    model: config_lib.DecoderConfig, successor: dict[int, int]
) -> decoder.Params:
  """Parameters under which token v is followed by successor[v].

  All layers add zero, the embedding is the identity, and so the output
  layer is a table from token to logits: 50 at the successor, after the final
  norm more.
  """
  chain = jax.tree.map(
      lambda leaf: np.zeros(leaf.shape, np.float32), decoder.shapes_of(model)
  )
  chain['embed']['embedding'] += np.eye(model.vocab_size, model.width)
  chain['final_norm']['scale'] += 1.0
  for token, following in successor.items():
    chain['lm_head']['kernel'][token, following] = 50.0
  return jax.tree.map(jnp.asarray, chain)


def plain_logp(logits: np.ndarray, params: types.SamplingParams) -> np.ndarray:
  """float64 log-probs of every token under the processed distribution."""
  scaled = np.asarray(logits, np.float64) / (params.temperature or 1.0)
  probability = np.exp(scaled - scaled.max())
  probability /= probability.sum()
  order = np.argsort(-probability, kind='stable')
  keep = np.ones(len(order), bool)
  if params.temperature > 0:
    if params.top_k:
      keep[order[params.top_k :]] = False
    if params.top_p < 1.0:
      left = probability[order] * keep[order]
      before = np.cumsum(left / left.sum()) - left / left.sum()
      keep[order[before >= params.top_p]] = False
    keep &= probability >= params.min_p * probability.max()
  kept = np.where(keep, probability, 0.0)
  with np.errstate(divide='ignore'):
    return np.log(kept / kept.sum())


def replay(params, completion: types.Completion) -> np.ndarray:
  """Log-probs of a completion's tokens by the plain float64 decoder."""
  start = len(completion.prompt)
  whole = np.concatenate([completion.prompt, completion.token])
  logits = cases.plain_logits(params, MODEL, whole[:-1])[start - 1 :]
  return np.array([
      plain_logp(row, completion.params)[token]
      for row, token in zip(logits, completion.token, strict=True)
  ])


def assert_same(one: types.Completion, other: types.Completion) -> None:
  """Same tokens, reason, and log-probs up to float32 rounding."""
  np.testing.assert_array_equal(one.token, other.token)
  assert one.finish_reason == other.finish_reason
  np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-5)
