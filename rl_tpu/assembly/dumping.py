"""Which numbers of a skipped step are not finite, and where (L18)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_tpu.learner import update as update_lib
from rl_tpu.records import dumps
from rl_tpu.rollout import batching
from rl_tpu.rollout import chain

# Segments that are named for a tensor; all entries are in the arrays.
_NAMED = 20


def dump(
    workdir: str,
    step: int,
    found: Mapping[str, Any],
    batch: batching.Batch,
    scored: update_lib.Scored,
    advantage_BT: np.ndarray,
) -> dict[str, Any]:
  """Writes the arrays of one skipped step, and what is known of it.

  Args:
    workdir: of the run.
    step: the update.
    found: network, minibatch and rollouts of the step, as in
      `update_figures.nonfinite`.
    batch: the batch.
    scored: its values and estimates.
    advantage_BT: advantages as the actor saw them.

  Returns:
    `found` with the tensors that are not finite, in the order in which one is
    computed from the other, and the dump's file.
  """
  tensors = _tensors(batch, scored, advantage_BT)
  spans = batch.minibatches[found['minibatch']]
  rows = np.concatenate([np.arange(*span) for span in spans])
  report = {
      'update': step,
      **found,
      'tensors': [
          bad
          for name, tensor_BT in tensors.items()
          if (bad := _nonfinite(name, tensor_BT, rows, batch)) is not None
      ],
  }
  path = dumps.path_of(workdir, step, found['network'], found['minibatch'])
  segments, joins = batch.segments.rows, batch.segments.joins
  layout = {
      'token': segments.token_BT,
      'position': segments.position_BT,
      'segment': joins.segment_BT,
      'rollout': joins.rollout_BT,
      'is_action': segments.action_mask_BT,
      'policy_weight': batch.policy_weight_BT,
      'critic_weight': batch.critic_weight_BT,
  }
  dumps.write(
      path,
      report,
      {n: np.asarray(a)[rows] for n, a in (layout | tensors).items()},
  )
  return report | {'dump': str(path.relative_to(workdir))}


def _tensors(batch, scored, advantage_BT) -> dict[str, np.ndarray]:
  estimates = scored.estimates
  return {
      'reward': batch.segments.joins.reward_BT,
      'behaviour_logp': batch.segments.rows.behaviour_logp_BT,
      'base_logp': scored.base_logp_BT,
      'reference_logp': scored.reference_logp_BT,
      'value': scored.value_BT,
      'reward_with_kl': estimates.reward_BT,
      'target': estimates.return_BT,
      'advantage': advantage_BT,
  }


def _nonfinite(
    name: str, tensor_BT: Any, rows: np.ndarray, batch: batching.Batch
) -> dict[str, Any] | None:
  """Entries at action tokens, and the first one of every segment."""
  joins = batch.segments.joins
  tensor_BT = np.asarray(tensor_BT)
  segment_BT = np.asarray(joins.segment_BT)
  # Nothing is read off the actions (G26).
  bad_BT = ~np.isfinite(tensor_BT) & np.asarray(
      batch.segments.rows.action_mask_BT
  )
  firsts: dict[int, tuple[int, int]] = {}
  for row in rows:
    for column in np.flatnonzero(bad_BT[row]):
      firsts.setdefault(int(segment_BT[row, column]), (int(row), int(column)))
  if not firsts:
    return None
  return {
      'name': name,
      'count': int(np.count_nonzero(bad_BT[rows])),
      'places': [
          _place(tensor_BT, row, column, batch)
          for row, column in list(firsts.values())[:_NAMED]
      ],
  }


def _place(tensor_BT, row: int, column: int, batch) -> dict[str, Any]:
  rows, joins = batch.segments.rows, batch.segments.joins
  index = int(joins.rollout_BT[row, column])
  rollout = batch.rollouts[index]
  # Segments of the table are sorted by rollout, then by time.
  first = int(np.flatnonzero(np.asarray(joins.rollout_N) == index)[0])
  segment = chain.in_time_order(rollout)[
      int(joins.segment_BT[row, column]) - first
  ]
  return {
      'task_id': rollout.task_id,
      'rollout_id': rollout.rollout_id,
      'segment': segment.segment_index,
      'position': int(rows.position_BT[row, column]),
      # JSON has no such numbers.
      'value': str(tensor_BT[row, column]),
  }


def summary(found: Mapping[str, Any]) -> str:
  """What was not finite, in one line."""
  tensors: Sequence[Mapping[str, Any]] = found['tensors']
  parts = [f'{t["name"]} ({t["count"]})' for t in tensors]
  text = ', '.join([*parts, *found['in_step']])
  if tensors:
    place = tensors[0]['places'][0]
    text += (
        f'; first at task {place["task_id"]}, rollout {place["rollout_id"]},'
        f' segment {place["segment"]}, position {place["position"]}'
    )
  return text
