"""What is watched of the critic, batch by batch (C2 to C7, C12 to C14)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_tpu.config import schema
from rl_tpu.learner import report as report_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.metrics import alarms
from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import pictures
from rl_tpu.metrics import slices
from rl_tpu.metrics import summary
from rl_tpu.metrics import value_curves
from rl_tpu.rollout import batching
from rl_tpu.rollout import chain
from rl_tpu.tasks import success as success_lib

Figures = dict[str, float | None]


def critic_table(
    batch: batching.Batch,
    scored: update_lib.Scored,
    *,
    version: int | None = None,
    level: str = 'token',
) -> tuple[diagnostics.CriticTable, np.ndarray]:
  """All critic tokens of the batch, and which belong to held-out tasks.

  This is the one gather of C14: everything that sorts, matches or resamples
  reads it on the host, in float64. Held-out rollouts (C7) are in the table and
  in no critic update.

  Args:
    batch: the batch.
    scored: its values and estimates.
    version: the actor's current version; None leaves the gap out (C2).
    level: critic.level; with `turn` a row is a turn.
  """
  joins = batch.segments.joins
  place, rollout, index, counts = in_time_order(batch, joins.critic_mask_BT)
  rollouts = batch.rollouts
  dropped = np.asarray([_dropped(r, level) for r in rollouts], np.int64)
  column = lambda values: np.asarray(values, object)[rollout].astype(str)
  numbers = lambda array: np.asarray(array).reshape(-1)[place].astype(
      np.float64
  )
  gap = None
  if version is not None:
    gap = version - versions(batch).reshape(-1)[place]
  table = diagnostics.CriticTable(
      value=numbers(scored.value_BT),
      target=numbers(scored.estimates.return_BT),
      rollout=column([r.rollout_id for r in rollouts]),
      action_index=index + dropped[rollout],
      length=(counts + dropped)[rollout],
      bootstrapped=np.asarray(joins.bootstrap_R)[rollout],
      termination=column([r.termination.value for r in rollouts]),
      source=column([r.source for r in rollouts]),
      family=column([r.task_family for r in rollouts]),
      advantage=numbers(scored.estimates.advantage_BT),
      delta=numbers(scored.estimates.delta_BT),
      gap=gap,
      at_cut=batch.at_cut_BT.reshape(-1)[place],
  )
  return table, np.asarray(batch.held_out_R)[rollout]


def in_time_order(
    batch: batching.Batch, mask_BT: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """The tokens of a mask, rollout by rollout in time order (V1).

  Returns:
    Flat place, rollout and index in its rollout of every token, and the
    number of tokens of every rollout.
  """
  place = np.flatnonzero(np.asarray(mask_BT))
  rollout = np.asarray(batch.segments.joins.rollout_BT).reshape(-1)[place]
  order = np.lexsort((batch.time_BT.reshape(-1)[place], rollout))
  place, rollout = place[order], rollout[order]
  counts = np.bincount(rollout, minlength=len(batch.rollouts))
  index = np.arange(len(place)) - (np.cumsum(counts) - counts)[rollout]
  return place, rollout, index, counts


def versions(batch: batching.Batch) -> np.ndarray:
  """[B, T] policy version that sampled each token, -1 off the actions."""
  version_BT = np.full(batch.time_BT.shape, -1, np.int64)
  # `unpack` gives views, so writing to them fills the rows.
  for rollout, parts in zip(batch.rollouts, batch.unpack(version_BT)):
    for segment, part in zip(rollout.segments, parts):
      part[:] = segment.behaviour_version
  return version_BT


def _dropped(rollout: Any, level: str) -> int:
  """Actions (or turns) of a dropped prefix, which j and N count (T10)."""
  first = chain.in_time_order(rollout)[0]
  return first.turn_offset if level == 'turn' else first.action_offset


def held_out_explained_variance(
    batch: batching.Batch, scored: update_lib.Scored
) -> float | None:
  """C3 over held-out rollouts with an outcome: what ends a warm-up (C1)."""
  table, held_out = critic_table(batch, scored)
  outside = table.where(held_out & ~np.asarray(table.bootstrapped, bool))
  return diagnostics.explained_variance(outside.target, outside.value)


def calibration(
    table: diagnostics.CriticTable,
) -> dict[str, float | None]:
  """Bias and calibration error: what a resume compares (O8)."""
  whole = diagnostics.errors(table)
  return {
      'bias': whole.bias if whole else None,
      'ece': diagnostics.calibration(table).ece,
  }


class CriticWatch:
  """Figures of the critic, and what they need of earlier batches.

  Attributes:
    calibration: of the last batch; None before one and without a critic.
  """

  def __init__(self, config: schema.ExperimentConfig):
    """Starts before the first batch."""
    self._config = config
    self._alarms = alarms.Watch(config.alarm)
    self._pictures: dict[str, np.ndarray] = {}
    self.calibration: Figures | None = None

  def figures(
      self,
      step: int,
      batch: batching.Batch,
      scored: update_lib.Scored,
      *,
      version: int,
      success: success_lib.TaskSuccess,
      pool: list[tuple[np.ndarray, np.ndarray]],
  ) -> Figures:
    """C2 to C7 of a batch, for training and for held-out tasks.

    Args:
      step: the update, which seeds the matching.
      batch: the batch.
      scored: its values and estimates.
      version: the actor's version that the batch was scored under.
      success: of the tasks, before this batch.
      pool: receives target and value of the held-out scored tokens.
    """
    if self._config.advantage.estimator != 'gae':
      return {}
    table, held_out = critic_table(
        batch, scored, version=version, level=self._config.critic.level
    )
    self.calibration = calibration(table)
    solved = {r.rollout_id: summary.is_solved(r) for r in batch.rollouts}
    rate = {r.rollout_id: success.rate(r.task_id) for r in batch.rollouts}
    drawn = step % self._config.log.histograms_every == 0
    self._pictures = {}
    outside = table.where(held_out)
    values: Figures = {}
    for prefix, part in (('', table.where(~held_out)), ('holdout', outside)):
      matched = value_curves.compare(
          value_curves.curves(part, solved, rate), seed=step
      )
      found = (
          diagnostics.critic_figures(part)
          | slices.at_cuts(part)
          | slices.figures(part)
          | slices.lag(part)
          | value_curves.figures(matched)
      )
      values |= slices.under(prefix, found) if prefix else found
      if drawn and len(part):
        self._draw(prefix, part, matched)
    ended = outside.where(~np.asarray(outside.bootstrapped, bool))
    finite = np.isfinite(ended.target) & np.isfinite(ended.value)
    pool.append((ended.target[finite], ended.value[finite]))
    if len(table):
      values['critic/value_mean'] = float(np.mean(table.value))
    return values

  def _draw(self, prefix, part, matched) -> None:
    bootstrapped = np.asarray(part.bootstrapped, bool)
    drawn = {'critic/value_curves': pictures.matched(matched)}
    for name, keep in (
        ('critic/calibration', np.ones(len(part), bool)),
        ('critic/calibration/scored', ~bootstrapped),
        ('critic/calibration/bootstrapped', bootstrapped),
    ):
      if keep.any():
        curve = diagnostics.calibration(part.where(keep))
        drawn[name] = pictures.calibration(curve)
    self._pictures |= slices.under(prefix, drawn) if prefix else drawn

  def write_pictures(self, writer: Any, step: int) -> None:
    """Writes what the last batch was drawn as, if it was (C5, C6)."""
    for tag, pixels in self._pictures.items():
      writer.image(step, tag, pixels)
    self._pictures = {}

  def raised(
      self,
      batch: batching.Batch,
      advantage_BT: np.ndarray,
      report: report_lib.Report,
      values: Mapping[str, float | None],
      *,
      frozen: bool,
  ) -> tuple[list[alarms.Alarm], Figures]:
    """C7's warning, C12 and C13 of a batch.

    Args:
      batch: the batch.
      advantage_BT: as the actor sees it.
      report: of its updates.
      values: its figures.
      frozen: the actor was not trained.
    """
    place, _, index, counts = self._trained(batch)
    tenths = diagnostics.POSITION_BINS
    first, last = alarms.one_sided(
        np.asarray(advantage_BT).reshape(-1)[place],
        tenths * index // np.maximum(counts, 1),
    )
    returns = batch.raw_return_R
    found = self._alarms.record(
        value_loss=report.critic.get('loss'),
        raw_return=(
            None if frozen or not len(returns) else float(np.mean(returns))
        ),
        held_out_mse=values.get('critic/holdout/mse'),
        first=first,
        last=last,
    )
    shown: Figures = {
        'adv/first_tenth': first,
        'adv/last_tenth': last,
        'critic/same_returns': float(alarms.same_returns(batch.return_R)),
    }
    shown |= {f'critic/alarm/{alarm.name}': 1.0 for alarm in found}
    return found, shown

  def _trained(self, batch: batching.Batch):
    """Places of the trained tokens; j and N count every action (V1)."""
    rows, joins = batch.segments.rows, batch.segments.joins
    place, rollout, index, counts = in_time_order(batch, rows.action_mask_BT)
    kept = np.asarray(joins.policy_mask_BT).reshape(-1)[place]
    dropped = np.asarray(
        [_dropped(r, 'token') for r in batch.rollouts], np.int64
    )
    return (
        place[kept],
        rollout[kept],
        (index + dropped[rollout])[kept],
        (counts + dropped)[rollout][kept],
    )

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint."""
    return self._alarms.state()

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on with what `state` gave."""
    self._alarms.restore(state)
