"""The cases of losses.json as padded arrays, for the tests of this room."""

import dataclasses
from typing import Any

import numpy as np

from rl_tpu.types import batch as batch_lib
from tests import golden_io

ROWS, LENGTH = 4, 24
_COLUMNS = (
    'logp',
    'logp_old',
    'logp_behavior',
    'logp_ref',
    'advantage',
    'value',
    'value_old',
    'return',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """One golden case; arrays are [B, T] with NaN in the padding.

  Attributes:
    config: thresholds under the names of the file.
    columns: float32 inputs by name; the file's nonsense off the mask.
    mask_BT: tokens that train.
    segment_BT: dense segment ids, -1 in padding.
    rollout_BT: dense rollout ids.
    task_BT: dense task ids.
    partitions: microbatches of the file, as masks over [B, T].
    expected: the file's expectations.
  """

  config: dict[str, float]
  columns: dict[str, np.ndarray]
  mask_BT: np.ndarray
  segment_BT: np.ndarray
  rollout_BT: np.ndarray
  task_BT: np.ndarray
  partitions: dict[str, list[np.ndarray]]
  expected: dict[str, Any]

  def __getitem__(self, name: str) -> np.ndarray:
    return self.columns[name]

  def trained(self, array_BT: Any) -> np.ndarray:
    """The entries at mask 1, in the file's order."""
    return np.asarray(array_BT)[self.mask_BT]

  def per_token(self, name: str) -> np.ndarray:
    """An expected column at mask 1."""
    column = np.asarray(self.expected['per_token'][name], np.float64)
    return column[self.trained_places()]

  def trained_places(self) -> np.ndarray:
    """Indices of the mask 1 tokens in the file."""
    return np.flatnonzero(self.mask_BT)

  def origin(self) -> batch_lib.Origin:
    """Rollout of every segment and task of every rollout, as tables."""
    size = 16
    rollout_N, task_R = (np.full(size, -1, np.int32) for _ in range(2))
    used = self.segment_BT >= 0
    rollout_N[self.segment_BT[used]] = self.rollout_BT[used]
    task_R[self.rollout_BT[used]] = self.task_BT[used]
    return batch_lib.Origin(rollout_N=rollout_N, task_R=task_R)

  def minibatch(self, weight_BT: np.ndarray) -> batch_lib.Minibatch:
    """What the objective reads, with one weight for actor and critic."""
    nothing = np.zeros((ROWS, LENGTH), np.int32)
    return batch_lib.Minibatch(
        rows=batch_lib.Rows(
            token_BT=nothing,
            position_BT=nothing,
            segment_BT=self.segment_BT,
            action_mask_BT=self.mask_BT,
            behaviour_logp_BT=self['logp_behavior'],
        ),
        advantage_BT=self['advantage'],
        return_BT=self['return'],
        value_BT=self['value_old'],
        base_logp_BT=self['logp_old'],
        reference_logp_BT=self['logp_ref'],
        policy_weight_BT=weight_BT,
        critic_weight_BT=weight_BT,
    )


def load() -> list[tuple[str, Case]]:
  """(id, case) of every golden case."""
  return [
      (golden['id'], _case(golden)) for golden in golden_io.cases('losses')
  ]


def _case(golden: dict[str, Any]) -> Case:
  tokens = golden['tokens']
  pairs = [(t['rollout'], t['segment']) for t in tokens]
  column = lambda name: [t[name] for t in tokens]
  return Case(
      config=golden['config'],
      columns={
          name: _grid(column(name), np.nan, np.float32) for name in _COLUMNS
      },
      mask_BT=_grid(column('mask'), 0, bool),
      segment_BT=_grid(_dense(pairs), -1, np.int32),
      rollout_BT=_grid(_dense(column('rollout')), -1, np.int32),
      task_BT=_grid(_dense(column('task')), -1, np.int32),
      partitions={
          size: [
              _grid([list(p) in part for p in pairs], False, bool)
              for part in parts
          ]
          for size, parts in golden['partitions'].items()
      },
      expected=golden['expected'],
  )


def _grid(values: Any, fill: Any, dtype: type) -> np.ndarray:
  out = np.full(ROWS * LENGTH, fill, dtype)
  out[: len(values)] = values
  return out.reshape(ROWS, LENGTH)


def _dense(values: list[Any]) -> list[int]:
  ids: dict[Any, int] = {}
  return [ids.setdefault(value, len(ids)) for value in values]
