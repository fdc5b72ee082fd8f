"""One batch through scoring, estimation, critic and actor updates (L17)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import state as state_lib
from rl_tpu.losses import objective
from rl_tpu.types import batch as batch_lib

# (first row, row after the last) of every microbatch of every minibatch.
RowRanges = Sequence[Sequence[tuple[int, int]]]


@dataclasses.dataclass(frozen=True)
class Scored:
  """A batch with everything that is computed before its updates (G13).

  Attributes:
    rows: microbatches on the mesh, in row order.
    ranges: their (start, stop) rows.
    value_BT: V_p used in the recursion, numpy.
    estimates: deltas, advantages, targets, effective rewards, numpy.
    base_logp_BT: log pi_base (L13), numpy.
    reference_logp_BT: log pi_ref, numpy; zeros where no reference is used.
  """

  rows: tuple[batch_lib.Rows, ...]
  ranges: tuple[tuple[int, int], ...]
  value_BT: np.ndarray
  estimates: batch_lib.Estimates
  base_logp_BT: np.ndarray
  reference_logp_BT: np.ndarray


@dataclasses.dataclass(frozen=True)
class Report:
  """What the updates of a batch did.

  Attributes:
    actor: statistics summed over the actor's steps, name to number.
    first: the same of the very first minibatch, before any step: the
      sampler's log-probabilities against the trainer's (O4).
    critic: statistics of the critic's last pass.
    skipped: minibatches whose gradient was not finite (L18), by network.
    empty: steps in which nothing was trained (K16).
  """

  actor: dict[str, float]
  first: dict[str, float]
  critic: dict[str, float]
  skipped: dict[str, list[int]]
  empty: int


class Updater:
  """Runs section L17 for one batch after the other."""

  def __init__(
      self,
      learner: learner_lib.Learner,
      *,
      batching: schema.BatchingConfig,
      critic: schema.CriticConfig,
      kl: schema.KlConfig,
      policy: schema.PolicyConfig,
      reference: Any | None,
  ):
    """Binds the settings; `reference` are frozen parameters or None."""
    self._learner = learner
    self._batching = batching
    self._critic = critic
    self._kl = kl
    self._policy = policy
    self._reference = reference

  def score(
      self,
      state: state_lib.TrainState,
      segments: batch_lib.SegmentBatch,
      minibatches: RowRanges,
  ) -> Scored:
    """Values, reference and baseline log-probs, then the recursion."""
    ranges = tuple(span for part in minibatches for span in part)
    rows = tuple(
        self._learner.place_rows(_slice(segments.rows, span)) for span in ranges
    )
    shape = segments.rows.token_BT.shape
    base_BT = np.asarray(segments.rows.behaviour_logp_BT, np.float32)
    if self._policy.baseline == 'decoupled':
      base_BT = _join(self._learner.logp(state.actor.params, rows))
    reference_BT = np.zeros(shape, np.float32)
    if self._reference is not None:
      reference_BT = _join(self._learner.logp(self._reference, rows))
    kl_BT = None
    if self._kl.in_ == 'reward':
      kl_BT = np.float32(self._kl.coef) * (base_BT - reference_BT)
    heads = self._heads(state, rows, segments, ranges)
    estimates, value_BT = self._learner.estimate(
        segments.joins, segments.rows.position_BT, heads, kl_BT
    )
    estimates, value_BT = learner_lib.to_host((estimates, value_BT))
    return Scored(rows, ranges, value_BT, estimates, base_BT, reference_BT)

  def _heads(self, state, rows, segments, ranges) -> list[jax.Array]:
    if state.critic is not None and self._critic.values == 'model':
      return self._learner.value_heads(state.critic.params, rows)
    # The comparison's constant: the mean return of the batch's rollouts.
    mean = 0.0
    if state.critic is not None:
      joins = segments.joins
      count = max(int(joins.included_R.sum()), 1)
      mean = float(joins.reward_BT.astype(np.float64).sum()) / count
    width = segments.rows.token_BT.shape[1]
    return [
        self._learner.place_rows(
            np.full((stop - start, width), mean, np.float32)
        )
        for start, stop in ranges
    ]

  def update(
      self,
      state: state_lib.TrainState,
      scored: Scored,
      *,
      advantage_BT: np.ndarray,
      policy_weight_BT: np.ndarray,
      critic_weight_BT: np.ndarray,
      minibatches: RowRanges,
      train_actor: bool,
  ) -> tuple[state_lib.TrainState, Report]:
    """Critic passes, then the actor's epochs; `state` is donated."""
    parts = self._minibatches(
        scored, advantage_BT, policy_weight_BT, critic_weight_BT, minibatches
    )
    actor, critic = state
    done = {'actor': [], 'critic': []}
    passes = (
        self._critic.updates_per_actor_update
        if train_actor
        else self._critic.warmup_updates
    )
    if critic is not None:
      for _ in range(passes):
        for part in parts:
          critic, stats, step = self._learner.update_critic(critic, part)
          done['critic'].append((stats, step))
    if train_actor:
      for _ in range(self._batching.epochs):
        for part in parts:
          actor, stats, step = self._learner.update_actor(actor, part)
          done['actor'].append((stats, step))
    return state_lib.TrainState(actor, critic), _report(done, len(parts))

  def _minibatches(self, scored, advantage_BT, policy_BT, critic_BT, minibatches):
    columns = {
        'advantage_BT': np.asarray(advantage_BT, np.float32),
        'return_BT': scored.estimates.return_BT,
        'value_BT': scored.value_BT,
        'base_logp_BT': scored.base_logp_BT,
        'reference_logp_BT': scored.reference_logp_BT,
        'policy_weight_BT': policy_BT,
        'critic_weight_BT': critic_BT,
    }
    by_range = dict(zip(scored.ranges, scored.rows))
    parts = []
    for spans in minibatches:
      part = []
      for start, stop in spans:
        placed = self._learner.place_rows(
            {name: column[start:stop] for name, column in columns.items()}
        )
        part.append(
            batch_lib.Minibatch(rows=by_range[(start, stop)], **placed)
        )
      parts.append(part)
    return parts


def _slice(rows: batch_lib.Rows, span: tuple[int, int]) -> batch_lib.Rows:
  return jax.tree.map(lambda x: np.asarray(x)[span[0] : span[1]], rows)


def _join(parts: Sequence[jax.Array]) -> np.ndarray:
  return np.concatenate(learner_lib.to_host(list(parts)), axis=0)


def _report(done: dict[str, list[Any]], num_parts: int) -> Report:
  """Fetches all statistics in one go and adds them up."""
  done = learner_lib.to_host(done)
  skipped = {'actor': [], 'critic': []}
  empty = 0
  numbers: dict[str, dict[str, float]] = {}
  for network, steps in done.items():
    total = None
    norms = []
    # Of the critic's passes the last one is reported: it shows what the fit
    # has come to.
    kept = steps[-num_parts:] if network == 'critic' else steps
    for index, (stats, step) in enumerate(steps):
      if step.empty:
        empty += 1
      elif not step.finite:
        skipped[network].append(index % num_parts)
    for stats, step in kept:
      total = stats if total is None else objective.merge_stats(total, stats)
      norms.append(float(step.gradient_norm))
    numbers[network] = _means(total)
    if norms:
      numbers[network]['grad_norm'] = float(np.mean(norms))
  first = _means(done['actor'][0][0]) if done['actor'] else {}
  return Report(numbers['actor'], first, numbers['critic'], skipped, empty)


def _means(stats: Any) -> dict[str, float]:
  return {} if stats is None else objective.stat_values(stats)
