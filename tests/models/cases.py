"""Tiny models, packed rows and a plain reference for the model tests."""

from collections.abc import Sequence
import math

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.types import batch as batch_lib

VOCAB = 24

LLAMA3 = {
    'rope_type': 'llama3',
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 32,
}

# One per family the decoder covers.
VARIANTS = {
    'llama': {},
    'qwen2': dict(qkv_bias=True, tie_embeddings=True),
    'qwen3': dict(qk_norm=True, num_kv_heads=1),
    'llama3': dict(rope_scaling=LLAMA3, num_kv_heads=4),
    'relu': dict(activation='relu', head_width=6),
    'gelu': dict(activation='gelu_tanh', norm_eps=1e-3),
}


def config(**changes) -> config_lib.DecoderConfig:
  """Width 32, 2 layers, 4 heads of 8 on 2 key heads."""
  settings = dict(
      vocab_size=VOCAB,
      width=32,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_width=8,
      mlp_width=48,
  )
  return config_lib.DecoderConfig(**(settings | changes))


def mixture(**changes) -> config_lib.MixtureConfig:
  """Four experts of which a token takes two, one shared, one dense layer."""
  settings = dict(
      num_experts=4,
      experts_per_token=2,
      expert_width=16,
      router='sigmoid',
      shared_width=16,
      leading_dense=1,
  )
  return config_lib.MixtureConfig(**(settings | changes))


def params(model: config_lib.DecoderConfig, seed: int = 0) -> decoder.Params:
  """Random parameters in which scales and biases are not 1 and 0."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    offset = 1.0 if path[-1].key == 'scale' else 0.0
    values = offset + 0.25 * rng.normal(size=leaf.shape)
    return jnp.asarray(values, jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, decoder.shapes_of(model))


def flat_params(
    model: config_lib.DecoderConfig, logits: Sequence[float]
) -> decoder.Params:
  """Parameters that give these logits after every token.

  All layers add zero and every embedding is ones, so the final norm's output
  is ones (up to its eps); the first row of the output layer is the logits.
  """
  flat = jax.tree.map(
      lambda leaf: np.zeros(leaf.shape, np.float32), decoder.shapes_of(model)
  )
  flat['embed']['embedding'] += 1.0
  flat['final_norm']['scale'] += 1.0
  flat['lm_head']['kernel'][0] = logits
  return jax.tree.map(jnp.asarray, flat)


def rows(
    *packed: Sequence[Sequence[int]],
    length: int,
    left: int = 0,
    pad_id: int = 0,
) -> batch_lib.Rows:
  """Packs segments of token ids into rows.

  Args:
    *packed: for every row, its segments.
    length: T.
    left: padding before the first segment.
    pad_id: the id that stands in padding.
  """
  shape = (len(packed), length)
  token = np.full(shape, pad_id, np.int32)
  position = np.zeros(shape, np.int32)
  segment = np.full(shape, -1, np.int32)
  number = 0
  for row, segments in enumerate(packed):
    start = left
    for ids in segments:
      stop = start + len(ids)
      token[row, start:stop] = ids
      position[row, start:stop] = np.arange(len(ids))
      segment[row, start:stop] = number
      start, number = stop, number + 1
  return batch_lib.Rows(
      token_BT=jnp.asarray(token),
      position_BT=jnp.asarray(position),
      segment_BT=jnp.asarray(segment),
      action_mask_BT=jnp.asarray(segment >= 0),
      behaviour_logp_BT=jnp.zeros(shape, jnp.float32),
  )


def ids(seed: int, count: int, vocab: int = VOCAB) -> list[int]:
  """Random token ids."""
  return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def plain_logits(tree, model: config_lib.DecoderConfig, token) -> np.ndarray:
  """float64 logits [T, V] of one sequence, head by head and query by query."""
  tree = jax.tree.map(lambda p: np.asarray(p, np.float64), tree)
  x = tree['embed']['embedding'][np.asarray(token)]
  for index in range(model.num_layers):
    layer = jax.tree.map(lambda p: p[index], tree['layers'])
    x = x + _plain_attention(layer, model, x)
    inner = _plain_norm(x, layer['mlp_norm']['scale'], model)
    gate = _plain_act(inner @ layer['gate']['kernel'], model.activation)
    up = inner @ layer['up']['kernel']
    x = x + (gate * up) @ layer['down']['kernel']
  x = _plain_norm(x, tree['final_norm']['scale'], model)
  if model.tie_embeddings:
    return x @ tree['embed']['embedding'].T
  return x @ tree['lm_head']['kernel']


def _plain_attention(layer, model, x) -> np.ndarray:
  x = _plain_norm(x, layer['attention_norm']['scale'], model)
  shared = model.num_heads // model.num_kv_heads
  out = np.zeros_like(x)
  for head in range(model.num_heads):
    query = _plain_head(layer, 'query', head, x, model)
    key = _plain_head(layer, 'key', head // shared, x, model)
    value = _plain_head(layer, 'value', head // shared, x, model)
    for q in range(len(x)):
      score = key[: q + 1] @ query[q] / math.sqrt(model.head_width)
      weight = np.exp(score - score.max())
      attended = weight @ value[: q + 1] / weight.sum()
      out[q] += attended @ layer['out']['kernel'][head]
  return out


def _plain_head(layer, name, head, x, model) -> np.ndarray:
  out = x @ layer[name]['kernel'][:, head]
  if model.qkv_bias:
    out = out + layer[name]['bias'][head]
  if name == 'value':
    return out
  if model.qk_norm:
    out = _plain_norm(out, layer[f'{name}_norm']['scale'], model)
  half = model.head_width // 2
  turned = out.copy()
  for position in range(len(x)):
    for pair in range(half):
      angle = position * _plain_rate(pair, model)
      cos, sin = math.cos(angle), math.sin(angle)
      first, second = out[position, pair], out[position, pair + half]
      turned[position, pair] = first * cos - second * sin
      turned[position, pair + half] = second * cos + first * sin
  return turned


def _plain_rate(pair: int, model) -> float:
  rate = model.rope_theta ** (-2.0 * pair / model.head_width)
  if not model.rope_scaling:
    return rate
  rule = model.rope_scaling
  wavelength = 2.0 * math.pi / rate
  original = rule['original_max_position_embeddings']
  if wavelength < original / rule['high_freq_factor']:
    return rate
  if wavelength > original / rule['low_freq_factor']:
    return rate / rule['factor']
  smooth = (original / wavelength - rule['low_freq_factor']) / (
      rule['high_freq_factor'] - rule['low_freq_factor']
  )
  return (1.0 - smooth) * rate / rule['factor'] + smooth * rate


def _plain_norm(x, scale, model) -> np.ndarray:
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_eps) * scale


def _plain_act(x, kind: str) -> np.ndarray:
  if kind == 'relu':
    return np.maximum(x, 0.0)
  if kind == 'silu':
    return x / (1.0 + np.exp(-x))
  inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
  return 0.5 * x * (1.0 + np.tanh(inner))


def log_softmax(logits: np.ndarray) -> np.ndarray:
  """float64 log-softmax over the last axis."""
  centred = logits - logits.max(-1, keepdims=True)
  return centred - np.log(np.exp(centred).sum(-1, keepdims=True))
