"""The rollouts of one update: tasks drawn, judged, replaced (section 5, 9).

Everything that has to be known of earlier batches to choose and to scale the
next one is kept here: the place in the tasks, their running success, the
scales of the rewards, and the verifier's noise.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.metrics import group_figures
from rl_tpu.metrics import noise as noise_lib
from rl_tpu.metrics import sources as sources_lib
from rl_tpu.metrics import summary
from rl_tpu.records import records
from rl_tpu.rewards import scaling
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.rollout import asks
from rl_tpu.rollout import batching
from rl_tpu.rollout import replacement
from rl_tpu.tasks import draws as draws_lib
from rl_tpu.tasks import success as success_lib
from rl_tpu.types import termination as term

# Discards that say nothing against the outcome of the rollout itself.
_SCORED_ALL_THE_SAME = (
    term.DiscardReason.FILTERED_BY_USER_RULE,
    term.DiscardReason.GROUP_INCOMPLETE,
)


class Gathering:
  """Draws tasks, judges their rollouts, and keeps what later batches need."""

  def __init__(
      self,
      config: schema.ExperimentConfig,
      tasks: Sequence[records.Task],
      *,
      deterministic_verifier: bool = False,
  ):
    """Starts before the first batch.

    Args:
      config: the experiment.
      tasks: of the training split.
      deterministic_verifier: a second score that differs stops the run (D8).

    Raises:
      ValueError: `data.mix` or `data.curriculum` that the tasks do not fit.
    """
    self._config = config
    self._deterministic = deterministic_verifier
    self.success = success_lib.TaskSuccess(config.data.success_window)
    self.scales = scaling.Scales(config.reward)
    self.noise = noise_lib.VerifierNoise()
    self.draws = draws_lib.TaskDraws(
        tasks,
        seed=config.seed,
        shuffle=config.tasks.shuffle,
        data=config.data,
        success=self.success,
    )
    self._drawn: dict[str, draws_lib.Draw] = {}
    self._spent: dict[str, float] = {}
    self._passed_over = 0

  # --- tasks ---------------------------------------------------------------

  def jobs(self, count: int | None = None) -> list[asks.Job]:
    """The next tasks as jobs, `group.size` rollouts of each.

    Args:
      count: tasks; None starts a batch of `batching.tasks_per_batch`.
    """
    if count is None:
      count = self._config.batching.tasks_per_batch
      self._drawn, self._spent = {}, {}
      self._passed_over = self.draws.passed_over
    size = self._config.group.size
    first = self.draws.count
    jobs = []
    for number, draw in enumerate(self.draws.take(count), first):
      for member in range(size):
        rollout_id = f'{number:07d}-{member}'
        self._drawn[rollout_id] = draw
        jobs.append(
            asks.Job(
                rollout_id=rollout_id,
                task=draw.task,
                seed=asks.derive_seed(self._config.seed, number, member),
                group_id=f'{number:07d}' if size > 1 else None,
            )
        )
    return jobs

  # --- judging -------------------------------------------------------------

  def admit(
      self,
      rollouts: Sequence[records.Rollout],
      collect: Callable[[Sequence[asks.Job]], list[records.Rollout]],
      **context: Any,
  ) -> tuple[list[records.Rollout], admission_lib.Admission]:
    """Judges a batch; replaces groups without spread where that is asked (E9).

    Args:
      rollouts: the batch as collected.
      collect: runs further jobs.
      **context: of `admission.admit`: versions and the user's rule.

    Returns:
      All rollouts, those of further rounds included, and their judgement.

    Raises:
      RuntimeError: a deterministic verifier that disagrees with itself (D8).
    """
    rollouts = list(rollouts)
    judged = self._judge(rollouts, context)
    self.check_noise(rollouts)
    group = self._config.group
    if not group.dynamic_sampling:
      return rollouts, judged
    spent = dict.fromkeys(
        ('replaced', 'rounds', 'extra_rollouts', 'extra_tokens',
         'extra_tool_calls', 'left_flat'), 0.0,
    )
    spent['success_sampled'] = _success(judged)
    estimator = self._config.advantage.estimator
    while True:
      flat = replacement.flat_groups(judged, estimator=estimator, group=group)
      spent['left_flat'] = float(len(flat))
      if not flat or spent['rounds'] == group.max_rounds:
        break
      fresh = collect(self.jobs(len(flat)))
      self.check_noise(fresh)
      judged = replacement.merge(
          replacement.discard_groups(judged, flat), self._judge(fresh, context)
      )
      rollouts += fresh
      spent['rounds'] += 1
      spent['replaced'] += len(flat)
      spent['extra_rollouts'] += len(fresh)
      spent['extra_tokens'] += sum(r.num_actions for r in fresh)
      spent['extra_tool_calls'] += sum(
          r.counters.get('tool_calls', 0.0) for r in fresh
      )
    self._spent = spent
    return rollouts, judged

  def _judge(
      self, rollouts: Sequence[records.Rollout], context: dict[str, Any]
  ) -> admission_lib.Admission:
    config = self._config
    return admission_lib.admit(
        rollouts,
        termination=config.termination,
        data=config.data,
        reward=config.reward,
        group=config.group,
        estimator=config.advantage.estimator,
        row_length=config.batching.row_length,
        scales=self.scales,
        staleness=config.staleness,
        allow_unreplayable=config.sampling.allow_unreplayable,
        **context,
    )

  def check_noise(self, rollouts: Sequence[records.Rollout]) -> None:
    """Counts second scores; evaluations bring theirs too (D8).

    Raises:
      RuntimeError: a deterministic verifier that disagrees with itself.
    """
    noise_lib.check_deterministic(
        self.noise.record(rollouts),
        verifier_id=self._config.verifier.target,
        deterministic=self._deterministic,
    )

  # --- what later batches know of this one ---------------------------------

  def take_in(
      self, admission: admission_lib.Admission, batch: batching.Batch
  ) -> None:
    """Keeps outcomes and returns of a batch for the batches after it."""
    outcomes = [
        (rollout.task_id, rollout)
        for rollout, verdict in admission.judged
        if verdict.score is not None
    ] + [
        (d.rollout.task_id, d.rollout)
        for d in admission.discards
        if d.reason in _SCORED_ALL_THE_SAME
    ]
    self.success.record(
        (task_id, summary.is_solved(rollout))
        for task_id, rollout in outcomes
        if summary.is_solved(rollout) is not None
    )
    trained = [m.verdict.in_policy_batch for m in admission.admitted]
    self.scales.record(
        [r.source for r, used in zip(batch.rollouts, trained) if used],
        batch.raw_return_R[np.asarray(trained, bool)],
    )

  # --- figures -------------------------------------------------------------

  def figures(
      self,
      admission: admission_lib.Admission,
      batch: batching.Batch,
      raw_advantage_BT: np.ndarray,
      advantage_BT: np.ndarray,
  ) -> dict[str, float | None]:
    """E8, E9, D1, D4, D7 and D8 of the batch, before it is taken in."""
    values: dict[str, float | None] = dict(admission.counters)
    values |= self._groups(batch)
    values |= {f'group/{name}': v for name, v in self._spent.items()}
    values |= sources_lib.figures(
        _columns(batch, raw_advantage_BT, advantage_BT)
    )
    values |= self._curriculum(admission)
    values |= self.noise.figures()
    return values

  def _groups(self, batch: batching.Batch) -> dict[str, float | None]:
    if self._config.advantage.estimator not in groups.ESTIMATORS:
      return {}
    group = self._config.group
    value_R = batch.score_R if group.outcome_only else batch.return_R
    compared = []
    for members in groups.subgroups_of(batch.subgroup_R):
      first = batch.rollouts[members[0]]
      compared.append(
          group_figures.Comparison(
              family=first.task_family,
              returns=tuple(value_R[members].tolist()),
              solved=tuple(
                  summary.is_solved(batch.rollouts[m]) for m in members
              ),
              rate=self.success.rate(first.task_id),
          )
      )
    values = group_figures.figures(compared, std_floor=group.std_floor)
    if batch.actions is not None and compared:
      steps = float(batch.actions.is_step_J.sum())
      members = sum(len(c.returns) for c in compared)
      values['group/steps'] = steps / members
      anchors = batch.actions.anchor_U
      values['group/anchored_turns'] = float(np.mean(anchors >= 0))
    return values

  def _curriculum(
      self, admission: admission_lib.Admission
  ) -> dict[str, float | None]:
    if self._config.data.curriculum == 'none' or not self._drawn:
      return {}
    draws = list(self._drawn.values())
    values: dict[str, float | None] = {
        f'rollout/task_standing/{name}': float(
            np.mean([d.standing == name for d in draws])
        )
        for name in ('unknown', 'mixed', 'solved', 'unsolved')
    }
    values['rollout/task_weight'] = float(np.mean([d.weight for d in draws]))
    values['rollout/easier_variants'] = float(
        np.mean([d.replaced for d in draws])
    )
    values['rollout/tasks_passed_over'] = float(
        self.draws.passed_over - self._passed_over
    )
    values['reward/success_unweighted'] = _unweighted(admission, self._drawn)
    return values

  # --- checkpoint ----------------------------------------------------------

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint (O7)."""
    return {
        'task_success': self.success.state(),
        'reward_scales': self.scales.state(),
        'verifier_noise': self.noise.state(),
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes on with what `state` gave; the place in the tasks is the draws'."""
    self.success.restore(state['task_success'])
    self.scales.restore(state['reward_scales'])
    self.noise.restore(state['verifier_noise'])


def _success(admission: admission_lib.Admission) -> float | None:
  """Success of what was sampled, before anything was replaced."""
  return summary.success_figures(admission.judged, ())['reward/success']


def _unweighted(
    admission: admission_lib.Admission, drawn: dict[str, draws_lib.Draw]
) -> float | None:
  """Success over the task set as it is, not as it was drawn (A6, D7).

  Every scored rollout counts by one over its task's sampling weight; easier
  variants are not of the set.
  """
  total = weight = 0.0
  for rollout, verdict in admission.judged:
    draw = drawn.get(rollout.rollout_id)
    solved = summary.is_solved(rollout)
    if draw is None or draw.replaced or verdict.score is None:
      continue
    if solved is not None:
      total += float(solved) / draw.weight
      weight += 1.0 / draw.weight
  return total / weight if weight else None


def _columns(
    batch: batching.Batch,
    raw_advantage_BT: np.ndarray,
    advantage_BT: np.ndarray,
) -> sources_lib.Columns:
  joins = batch.segments.joins
  mask_BT = np.asarray(joins.policy_mask_BT)
  source_R = np.asarray(joins.source_R)
  return sources_lib.Columns(
      sources=batch.sources,
      rollout_source=source_R[: len(batch.rollouts)],
      tokens=np.asarray([r.num_tokens for r in batch.rollouts], np.int64),
      raw_return=batch.raw_return_R,
      normalised=batch.return_R,
      token_source=source_R[np.asarray(joins.rollout_BT)[mask_BT]],
      raw_advantage=np.asarray(raw_advantage_BT)[mask_BT],
      advantage=np.asarray(advantage_BT)[mask_BT],
  )
