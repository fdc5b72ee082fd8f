"""A real model whose log-probabilities and values are those of a golden case.

Every token of a case has an id of its own, its embedding is one axis, and the
layers add nothing to the stream. So the output layer has one row for each
token before, in which the logit of the token after is chosen at will; the
value head has one number for each token before. The gradient by these numbers
is the golden gradient by log-probability and value, times known factors.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.types import batch as batch_lib
from tests import golden_io

# Ids: the tokens of the case, one context token a segment, one that is never
# seen and takes the rest of the probability.
VOCAB = 96
CONTEXT, REST = 72, 95
ROWS, LENGTH = 16, 10
CONFIG = model_config.DecoderConfig(
    vocab_size=VOCAB,
    width=VOCAB,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_width=8,
    mlp_width=8,
    max_length=LENGTH,
)
# The final norm of a one-hot vector.
SCALE = 1.0 / np.sqrt(1.0 / VOCAB + CONFIG.norm_eps)
_IMPOSSIBLE = -200.0


@functools.cache
def _blank() -> decoder.Params:
  params = decoder.init_params(CONFIG, jax.random.key(0))
  params['embed']['embedding'] = jnp.eye(VOCAB, dtype=jnp.float32)
  for name in ('out', 'down'):
    layer = params['layers'][name]
    layer['kernel'] = jnp.zeros_like(layer['kernel'])
  return params


@dataclasses.dataclass(frozen=True)
class World:
  """A golden case laid out as rows, one segment each.

  Attributes:
    golden: the case of the file.
    segments: (rollout, segment) in order of the dense id.
    places: tokens of every segment, as indices of the file.
  """

  golden: dict[str, Any]
  segments: list[tuple[int, int]]
  places: list[list[int]]

  @property
  def tokens(self) -> list[dict[str, Any]]:
    """Tokens of the file."""
    return self.golden['tokens']

  def column(self, name: str) -> np.ndarray:
    """One input of every token."""
    return np.asarray([t[name] for t in self.tokens], np.float64)

  @property
  def mask(self) -> np.ndarray:
    """Tokens that train."""
    return self.column('mask') > 0

  def before(self) -> np.ndarray:
    """Id of the token before each."""
    out = np.zeros(len(self.tokens), int)
    for segment, places in enumerate(self.places):
      out[places] = [CONTEXT + segment, *places[:-1]]
    return out

  def params(self) -> decoder.Params:
    """The policy with the case's log-probabilities."""
    logp = np.minimum(self.column('logp'), -1e-6)
    kernel = np.full((VOCAB, VOCAB), _IMPOSSIBLE)
    kernel[:, REST] = 0.0
    kernel[self.before(), np.arange(len(logp))] = logp - np.log(
        -np.expm1(logp)
    )
    params = jax.tree.map(jnp.copy, _blank())
    params['lm_head']['kernel'] = jnp.asarray(kernel / SCALE, jnp.float32)
    return params

  def value_kernel(self) -> np.ndarray:
    """The value head with the case's values."""
    kernel = np.zeros(VOCAB)
    kernel[self.before()] = self.column('value') / SCALE
    return kernel.astype(np.float32)

  def by_logp(self, gradient: decoder.Params) -> np.ndarray:
    """The gradient by each log-probability, times 1 - p."""
    kernel = np.asarray(gradient['lm_head']['kernel'], np.float64)
    places = self.before(), np.arange(len(self.tokens))
    return kernel[places] / SCALE

  def rest(self) -> np.ndarray:
    """1 - p of every token: how far its logit moves its log-probability."""
    return -np.expm1(np.minimum(self.column('logp'), -1e-6))

  def by_value(self, gradient: Any) -> np.ndarray:
    """The gradient by each value."""
    kernel = np.asarray(gradient['value_head']['kernel'], np.float64)
    return kernel[self.before()] / SCALE

  def minibatch(
      self, size: str, weight: np.ndarray
  ) -> list[batch_lib.Minibatch]:
    """The microbatches of one of the file's partitions, padded with NaN."""
    return [
        # A segment without a token has no row.
        self._microbatch(
            [tuple(pair) for pair in part if tuple(pair) in self.segments],
            weight,
        )
        for part in self.golden['partitions'][size]
    ]

  def _microbatch(self, members, weight) -> batch_lib.Minibatch:
    ids = np.full((ROWS, LENGTH), 0, np.int32)
    segment = np.full((ROWS, LENGTH), -1, np.int32)
    place = np.full((ROWS, LENGTH), -1, int)
    for row, pair in enumerate(members):
      number = self.segments.index(pair)
      tokens = self.places[number]
      ids[row, : len(tokens) + 1] = [CONTEXT + number, *tokens]
      segment[row, : len(tokens) + 1] = number
      place[row, 1 : len(tokens) + 1] = tokens
    spread = lambda name: np.where(
        place >= 0, self.column(name)[place], np.nan
    ).astype(np.float32)
    position = np.where(segment >= 0, np.arange(LENGTH), 0).astype(np.int32)
    weight_BT = np.where(place >= 0, weight[place], 0.0).astype(np.float32)
    return batch_lib.Minibatch(
        rows=batch_lib.Rows(
            token_BT=ids,
            position_BT=position,
            segment_BT=segment,
            action_mask_BT=weight_BT > 0,
            behaviour_logp_BT=spread('logp_behavior'),
        ),
        advantage_BT=spread('advantage'),
        return_BT=spread('return'),
        value_BT=spread('value_old'),
        base_logp_BT=spread('logp_old'),
        reference_logp_BT=spread('logp_ref'),
        policy_weight_BT=weight_BT,
        critic_weight_BT=weight_BT,
        origin=self.origin(),
    )

  def origin(self) -> batch_lib.Origin:
    """Rollout of every segment and task of every rollout."""
    tasks = sorted({t['task'] for t in self.tokens})
    rollout_N, task_R = (np.full(16, -1, np.int32) for _ in range(2))
    for number, (rollout, _) in enumerate(self.segments):
      rollout_N[number] = rollout
    for token in self.tokens:
      task_R[token['rollout']] = tasks.index(token['task'])
    return batch_lib.Origin(rollout_N=rollout_N, task_R=task_R)


def load() -> list[tuple[str, World]]:
  """(id, world) of every golden case."""
  return [(name, _world(case)) for name, case in golden_io.named('losses')]


def _world(golden: dict[str, Any]) -> World:
  pairs = [(t['rollout'], t['segment']) for t in golden['tokens']]
  segments = list(dict.fromkeys(pairs))
  places = [
      [i for i, pair in enumerate(pairs) if pair == segment]
      for segment in segments
  ]
  return World(golden, segments, places)
