"""One batch through scoring, estimation, critic and actor updates (L17)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import report as report_lib
from rl_tpu.learner import state as state_lib
from rl_tpu.losses import kl as kl_lib
from rl_tpu.models import lora
from rl_tpu.sharding import placement
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
    strata: what figures are split by, numpy; None where it is unknown.
    origin: rollout and task of every segment, on the mesh.
    kl_coef_Y: coefficient of the KL term by token type at this update (L6).
    nonfinite: real positions whose score is not finite, by part (L21).
  """

  rows: tuple[batch_lib.Rows, ...]
  ranges: tuple[tuple[int, int], ...]
  value_BT: np.ndarray
  estimates: batch_lib.Estimates
  base_logp_BT: np.ndarray
  reference_logp_BT: np.ndarray
  strata: batch_lib.Strata | None
  origin: batch_lib.Origin | None
  kl_coef_Y: np.ndarray
  nonfinite: dict[str, int]


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
      *,
      update: int = 0,
  ) -> Scored:
    """Values, reference and baseline log-probs, then the recursion.

    Args:
      state: networks before any update of the batch.
      segments: the batch.
      minibatches: its microbatches.
      update: number of the update, for scheduled coefficients (L6).
    """
    ranges = tuple(span for part in minibatches for span in part)
    rows = tuple(
        self._learner.place_rows(_slice(segments.rows, span)) for span in ranges
    )
    shape = segments.rows.token_BT.shape
    base_BT = np.asarray(segments.rows.behaviour_logp_BT, np.float32)
    if self._policy.baseline == 'decoupled':
      base_BT = _join(self._learner.logp(state.policy_params, rows))
    reference_BT = np.zeros(shape, np.float32)
    if self._reference is not None:
      reference_BT = _join(self._learner.reference_logp(self._reference, rows))
    kl_BT, coef_Y = None, kl_lib.coefficients(self._kl, update)
    if self._kl.in_ == 'reward':
      coef_BT = coef_Y[0]
      if segments.strata is not None:
        coef_BT = coef_Y[segments.strata.type_BT]
      kl_BT = kl_lib.reward_penalty(base_BT, reference_BT, coef=coef_BT)
    heads = self._heads(state, rows, segments, ranges)
    estimates, value_BT = self._learner.estimate(
        segments.joins, segments.rows.position_BT, heads, kl_BT
    )
    estimates, value_BT = placement.fetch((estimates, value_BT))
    origin = segments.origin
    return Scored(
        rows=rows,
        ranges=ranges,
        value_BT=value_BT,
        estimates=estimates,
        base_logp_BT=base_BT,
        reference_logp_BT=reference_BT,
        strata=segments.strata,
        origin=None if origin is None else self._learner.place_tables(origin),
        kl_coef_Y=coef_Y,
        nonfinite=_nonfinite(
            segments.rows,
            base=base_BT,
            reference=reference_BT,
            values=value_BT,
        ),
    )

  def _heads(self, state, rows, segments, ranges) -> list[jax.Array]:
    critic_params = state.critic_params
    if critic_params is not None and self._critic.values == 'model':
      return self._learner.value_heads(critic_params, rows)
    # The comparison's constant: the mean return of the batch's rollouts.
    mean = 0.0
    if critic_params is not None:
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
      source_BT: np.ndarray | None = None,
  ) -> tuple[state_lib.TrainState, report_lib.Report]:
    """Critic passes, then the actor's epochs; `state` is donated.

    Args:
      state: networks and optimizers.
      scored: the batch, scored.
      advantage_BT: advantages as the actor sees them.
      policy_weight_BT: fixed weights of the policy loss.
      critic_weight_BT: the same for the critic.
      minibatches: row ranges of their microbatches.
      train_actor: False during the critic's warm-up.
      source_BT: dense task source of every token: the gradient norm of each
        is measured before the first step, a backward pass each (L18). None
        is off.
    """
    parts = self._minibatches(
        scored, advantage_BT, policy_weight_BT, critic_weight_BT, minibatches
    )
    actor, critic, base = state
    done = {'actor': [], 'critic': []}
    norms = {}
    if source_BT is not None and train_actor:
      norms = self._source_norms(state, parts, source_BT, minibatches)
    passes = (
        self._critic.updates_per_actor_update
        if train_actor
        else self._critic.warmup_updates
    )
    if critic is not None:
      for _ in range(passes):
        for part in parts:
          critic, stats, step = self._learner.update_critic(
              critic, part, state.critic_base
          )
          done['critic'].append((stats, step))
    if train_actor:
      for _ in range(self._batching.epochs):
        for part in parts:
          actor, stats, step = self._learner.update_actor(actor, part, base)
          done['actor'].append((stats, step))
    report = report_lib.build(
        placement.fetch(done),
        len(parts),
        nonfinite=scored.nonfinite,
        source_norms=placement.fetch(norms),
    )
    return state_lib.TrainState(actor, critic, base), report

  def _source_norms(self, state, parts, source_BT, minibatches):
    """Norm of the gradient that each source's tokens add up to."""
    params, base = state.actor.params, state.base
    whole = lora.join(base, params)
    planned = [self._learner.planned(whole, part) for part in parts]
    norms = {}
    for source in np.unique(source_BT[source_BT >= 0]):
      masked = []
      for part, spans in zip(planned, minibatches):
        for micro, (start, stop) in zip(part, spans):
          is_its_BT = self._learner.place_rows(source_BT[start:stop] == source)
          masked.append(_only(micro, is_its_BT))
      norms[int(source)] = self._learner.gradient_norm(params, masked, base)
    return norms

  def _minibatches(
      self, scored, advantage_BT, policy_BT, critic_BT, minibatches
  ):
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
    kl_coef_Y = self._learner.place_tables(scored.kl_coef_Y)
    parts = []
    for spans in minibatches:
      part = []
      for start, stop in spans:
        placed = self._learner.place_rows(
            jax.tree.map(
                lambda column: column[start:stop],
                {**columns, 'strata': scored.strata},
            )
        )
        part.append(
            batch_lib.Minibatch(
                rows=by_range[(start, stop)],
                origin=scored.origin,
                kl_coef_Y=kl_coef_Y,
                **placed,
            )
        )
      parts.append(part)
    return parts


def _slice(rows: batch_lib.Rows, span: tuple[int, int]) -> batch_lib.Rows:
  return jax.tree.map(lambda x: np.asarray(x)[span[0] : span[1]], rows)


def _join(parts: Sequence[jax.Array]) -> np.ndarray:
  return np.concatenate(placement.fetch(list(parts)), axis=0)


def _nonfinite(rows: batch_lib.Rows, **scores: np.ndarray) -> dict[str, int]:
  """Real positions with a score that is not finite, by part (L21)."""
  real_BT = np.asarray(rows.segment_BT) >= 0
  return {
      name: int(np.count_nonzero(~np.isfinite(score_BT[real_BT])))
      for name, score_BT in scores.items()
  }


def _only(part: batch_lib.Minibatch, mask_BT: jax.Array) -> batch_lib.Minibatch:
  """A microbatch in which the other tokens weigh nothing."""
  keep = lambda x: None if x is None else jax.numpy.where(mask_BT, x, 0.0)
  plan = part.plan
  if plan is not None:
    plan = plan._replace(
        weight_BT=keep(plan.weight_BT), slope_BT=keep(plan.slope_BT)
    )
  return part._replace(
      policy_weight_BT=keep(part.policy_weight_BT),
      critic_weight_BT=jax.numpy.zeros_like(part.critic_weight_BT),
      plan=plan,
  )
