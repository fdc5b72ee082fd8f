"""What goes into the sampler and what comes out; numpy on both sides."""

import dataclasses
import math

import numpy as np

from rl_tpu.types import support as support_lib

STOP, LENGTH, CONTEXT, ABORT = 'stop', 'length', 'context', 'abort'
# Codes of the decode step; 0 is not finished. Only the host aborts.
FINISH_REASONS = (None, STOP, LENGTH, CONTEXT)
MAX_STOP_IDS = 4


@dataclasses.dataclass(frozen=True)
class SamplingParams:
  """How the tokens of one request are drawn.

  The order is temperature, top_k, top_p over what is left, min_p. Tokens that
  tie with the last one kept are kept.

  Attributes:
    max_tokens: sampled tokens at most, the stop token included.
    temperature: divides the logits; 0 takes the likeliest token and reports
      its log-prob at temperature 1.
    top_k: keeps the likeliest k; 0 is off.
    top_p: keeps the likeliest that reach this probability; 1 is off.
    min_p: keeps what has this share of the top probability; 0 is off.
    stop_ids: tokens that end the request; they stay in its ids.
    seed: with the token's index the whole source of randomness.
  """

  max_tokens: int
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  stop_ids: tuple[int, ...] = ()
  seed: int = 0

  def __post_init__(self):
    if self.max_tokens < 1:
      raise ValueError(f'max_tokens must be at least 1, got {self.max_tokens}.')
    if not 0.0 <= self.temperature < math.inf:
      raise ValueError(
          f'temperature must be 0 or more, got {self.temperature}.'
      )
    if self.top_k < 0:
      raise ValueError(f'top_k must be 0 (off) or more, got {self.top_k}.')
    if not 0.0 < self.top_p <= 1.0:
      raise ValueError(f'top_p must lie in (0, 1], got {self.top_p}.')
    if not 0.0 <= self.min_p <= 1.0:
      raise ValueError(f'min_p must lie in [0, 1], got {self.min_p}.')
    if len(self.stop_ids) > MAX_STOP_IDS:
      raise ValueError(
          f'at most {MAX_STOP_IDS} stop_ids, got {len(self.stop_ids)}.'
      )

  @property
  def truncates(self) -> bool:
    """True where the support is smaller than the vocabulary (O5)."""
    return support_lib.truncates(self.top_k, self.top_p, self.min_p)


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """One prompt to continue."""

  request_id: str
  prompt: np.ndarray
  params: SamplingParams


@dataclasses.dataclass(frozen=True, eq=False)
class Completion:
  """What was sampled for a request.

  Attributes:
    request_id: the request's.
    prompt: int32 ids as given.
    token: int32 ids as sampled, the stop token included.
    logprob: float32, under the distribution that was sampled from: after
      temperature, top_k, top_p and min_p.
    version: int32 policy version that sampled each token.
    finish_reason: stop, length (max_tokens), context (max_length) or abort.
      length and context are truncations, not ends of the task.
    params: the request's.
    support: what each token was drawn from; None where that is not recorded.
  """

  request_id: str
  prompt: np.ndarray
  token: np.ndarray
  logprob: np.ndarray
  version: np.ndarray
  finish_reason: str
  params: SamplingParams
  support: support_lib.Support | None = None
