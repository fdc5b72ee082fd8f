"""What figures are split by (L19), and where segments belong (L8, L20)."""

from collections.abc import Sequence

import numpy as np

from rl_tpu.records import records
from rl_tpu.rollout import joins
from rl_tpu.rollout import timeline
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import token_types

TENTHS = 10


def strata(
    flat: timeline.Tokens, acts: timeline.Actions, grid: joins.Grid
) -> batch_lib.Strata:
  """Type, tenth of the rollout and length of every action token."""
  count_R = np.bincount(acts.rollout, minlength=1)
  first_R = np.searchsorted(acts.rollout, np.arange(len(count_R)))
  index = np.arange(len(acts.token)) - first_R[acts.rollout]
  count = count_R[acts.rollout]
  types = flat.column('token_type', np.int32)[acts.token]
  spread = lambda values, fill: grid.spread_at(
      acts.token, values, fill, np.int32
  )
  return batch_lib.Strata(
      type_BT=spread(types, token_types.TEXT),
      position_BT=spread(TENTHS * index // np.maximum(count, 1), 0),
      length_BT=spread(np.log2(np.maximum(count, 1)).astype(np.int32), 0),
  )


def origin(
    flat: timeline.Tokens, rollouts: Sequence[records.Rollout]
) -> batch_lib.Origin:
  """Rollout of every segment and task of every rollout, as padded tables."""
  task_of: dict[str, int] = {}
  tasks = [task_of.setdefault(r.task_id, len(task_of)) for r in rollouts]
  return batch_lib.Origin(
      rollout_N=_table(flat.segment_rollout), task_R=_table(tasks)
  )


def _table(ids: Sequence[int] | np.ndarray) -> np.ndarray:
  out = np.full(joins.table_size(len(ids)), -1, np.int32)
  out[: len(ids)] = ids
  return out
