"""Which tokens could be drawn: the sampling support, position by position (R5).

With top-k, top-p or min-p a token is drawn from part of the vocabulary, and its
log-probability is that of this part. The trainer can form the same ratio only
if it knows the part (L16).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WHOLE, TOO_LARGE = 0, -1


class Support(NamedTuple):
  """Supports of n positions, ragged.

  Attributes:
    count: int32 [n]; tokens of the support, WHOLE where it is the whole
      vocabulary, TOO_LARGE where it was larger than what is recorded.
    ids: int32, the supports one after the other.
  """

  count: np.ndarray
  ids: np.ndarray

  def __len__(self) -> int:
    return len(self.count)


def truncates(top_k, top_p, min_p):
  """True where the support is smaller than the vocabulary; arrays or not."""
  return (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)


def whole(length: int) -> Support:
  """Positions that are not truncated."""
  return Support(np.full(length, WHOLE, np.int32), np.zeros(0, np.int32))


def join(parts: Sequence[Support]) -> Support:
  """One support after the other."""
  return Support(
      np.concatenate([part.count for part in parts]),
      np.concatenate([part.ids for part in parts]),
  )


def from_columns(count_N: np.ndarray, ids_NM: np.ndarray) -> Support:
  """From the padded form, in which ids below 0 are padding."""
  return Support(
      np.asarray(count_N, np.int32),
      np.asarray(ids_NM[ids_NM >= 0], np.int32),
  )


def padded(support: Support, size: int) -> np.ndarray:
  """[n, size] int32 with -1 behind each support; a whole one is all -1.

  Raises:
    ValueError: a support that is larger.
  """
  count = np.maximum(support.count, 0)
  if count.size and count.max() > size:
    raise ValueError(
        f'a sampling support of {count.max()} tokens does not fit'
        f' sampling.max_support = {size}.'
    )
  out = np.full((len(count), size), -1, np.int32)
  out[np.arange(size) < count[:, None]] = support.ids
  return out
