"""Which row and column every segment lands on (section 3.10).

Layout only: it looks at lengths and at the order of the data, never at
rewards, values, arrival or the clock.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Layout:
  """Places of the segments of a batch.

  Attributes:
    row: row of every segment.
    column: first column of every segment in its row.
    num_rows: rows of the batch, empty ones included.
    minibatches: (first row, row after the last) of the microbatches of each
      minibatch. A minibatch without rows has none.
  """

  row: np.ndarray
  column: np.ndarray
  num_rows: int
  minibatches: tuple[tuple[tuple[int, int], ...], ...]


def first_fit(
    lengths: Sequence[int], capacity: int
) -> tuple[np.ndarray, np.ndarray, int]:
  """Puts each length into the first row that has room, in the order given.

  Args:
    lengths: tokens of each piece.
    capacity: tokens of a row.

  Returns:
    Row and column of each piece, and the number of rows.

  Raises:
    ValueError: a piece longer than a row (P5, K36).
  """
  used = np.zeros(max(len(lengths), 1), np.int64)
  row = np.zeros(len(lengths), np.int64)
  column = np.zeros(len(lengths), np.int64)
  num_rows = 0
  for index, length in enumerate(lengths):
    if length > capacity:
      raise ValueError(
          f'a segment of {length} tokens does not fit a row of {capacity}'
          ' (batching.row_length); admission discards it as'
          ' context_overlong.'
      )
    # Rows after the last used one are empty, so one always fits.
    place = int(np.argmax(used[: num_rows + 1] + length <= capacity))
    row[index], column[index] = place, used[place]
    used[place] += length
    num_rows = max(num_rows, place + 1)
  return row, column, num_rows


def split_rollouts(num_rollouts: int, minibatches: int) -> np.ndarray:
  """Minibatch of every rollout: consecutive, sizes differ by one at most."""
  parts = np.array_split(np.arange(num_rollouts), minibatches)
  return np.concatenate(
      [np.full(len(part), index) for index, part in enumerate(parts)]
  ).astype(np.int64)


def pack(
    lengths: np.ndarray,
    minibatch: np.ndarray,
    *,
    num_minibatches: int,
    row_length: int,
    rows_per_microbatch: int,
) -> Layout:
  """First-fit inside each minibatch, rows rounded up to whole microbatches.

  Args:
    lengths: tokens of every segment, in rollout and time order.
    minibatch: minibatch of every segment, ascending.
    num_minibatches: minibatches of the batch.
    row_length: tokens of a row.
    rows_per_microbatch: rows of a forward and backward pass.
  """
  row = np.zeros(len(lengths), np.int64)
  column = np.zeros(len(lengths), np.int64)
  spans = []
  start = 0
  for part in range(num_minibatches):
    here = np.flatnonzero(minibatch == part)
    row[here], column[here], rows = first_fit(lengths[here], row_length)
    row[here] += start
    # A minibatch without rows keeps one empty microbatch: its step is the
    # same program, trains nothing, and is counted as empty (K16).
    count = max(1, -(-rows // rows_per_microbatch))
    stop = start + count * rows_per_microbatch
    spans.append(
        tuple(
            (first, first + rows_per_microbatch)
            for first in range(start, stop, rows_per_microbatch)
        )
    )
    start = stop
  return Layout(row, column, start, tuple(spans))
