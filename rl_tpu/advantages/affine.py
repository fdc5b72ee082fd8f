"""Suffix sums A_j = delta_j + c_j A_{j+1} over packed segments, in two levels.

Such a recursion is affine in what comes from beyond: over any stretch
A_first = value + scale * A_after, with scale the product of the c. The rows
are cut into chunks (`lanes`). A first scan of all chunks gives the affine map
of each; chunks are followed along their row and segments, a few numbers each,
along their rollout; a second scan starts from the right numbers and writes the
result. Nothing but those few numbers crosses rows, so rows may lie on
different devices.

A *stretch* is what lies from a segment's first transition up to the next
segment's first transition in the row, or to the row's end. Between the last
transition of one and the first of the next there are only positions that are
no transitions (V0), through which the trace passes unchanged.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.advantages import lanes as lanes_lib
from rl_tpu.types import batch as batch_lib


class Rate(NamedTuple):
  """c of a decaying transition: a constant, or a number per position.

  Attributes:
    constant: gamma * lambda; read if `value_BT` is None.
    value_BT: the same for every position.
  """

  constant: Any
  value_BT: jax.Array | None = None


class Affine(NamedTuple):
  """x -> value + scale * x, one map for every rate along the first axis."""

  value: jax.Array
  scale: jax.Array

  def after(self, inner: 'Affine') -> 'Affine':
    """This map of the other's result."""
    return Affine(
        self.value + self.scale * inner.value, self.scale * inner.scale
    )


def _identity(shape: tuple[int, ...]) -> Affine:
  return Affine(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32))


def _where(condition: jax.Array, one: Affine, other: Affine) -> Affine:
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def suffix_sums(
    joins: batch_lib.Joins,
    delta_BT: jax.Array,
    rates: Sequence[Rate],
    *,
    joined: bool,
) -> list[jax.Array]:
  """A_BT under every rate, 0 off the transitions.

  Args:
    joins: how positions follow each other.
    delta_BT: residuals, 0 off the transitions.
    rates: c where `joins.decay_BT`; 1 at the other transitions.
    joined: carry the trace on into the next segment of the rollout. False
      starts anew in every segment.
  """
  lanes = lanes_lib.Lanes(delta_BT.shape)
  stretches = _stretches(joins, lanes)
  steps = _steps(joins, lanes, delta_BT, rates, stretches)
  chunk = _scan_maps(lanes.count, steps, rates)
  beyond = _follow_rows(lanes, chunk, stretches.ends_here_M)
  if joined:
    head = _heads(lanes, steps, rates, stretches)
    ahead = _follow_rollouts(joins, stretches, head, beyond)
  else:
    ahead = jnp.zeros((len(rates), joins.first_N.shape[0]))
  start = beyond.value + beyond.scale * stretches.at_edges(ahead)
  sums = _scan_sums(steps, rates, stretches, ahead, start)
  return [
      jnp.where(joins.transition_mask_BT, lanes.merge(sum_KM), 0.0)
      for sum_KM in sums
  ]


class _Stretches(NamedTuple):
  """Where stretches begin and end, as (step, lane).

  Attributes:
    exists_N: the segment has a transition, and so a stretch.
    first_step_N: step of its first position.
    first_lane_N: lane of its first position.
    end_step_N: step of its last position, which is no transition.
    end_lane_N: lane of its last position; out of range if none exists.
    ends_here_M: a stretch ends in the lane.
    order_N: segments by place.
    at_edge_M: index into `order_N` of the stretch at the right edge of each
      lane, -1 if none is.
  """

  exists_N: jax.Array
  first_step_N: jax.Array
  first_lane_N: jax.Array
  end_step_N: jax.Array
  end_lane_N: jax.Array
  ends_here_M: jax.Array
  order_N: jax.Array
  at_edge_M: jax.Array

  def at_edges(self, table_N: jax.Array) -> jax.Array:
    """Entries of [rate, N] for the stretches at the lanes' right edges."""
    segment_M = self.order_N[jnp.maximum(self.at_edge_M, 0)]
    return jnp.where(self.at_edge_M >= 0, table_N[:, segment_M], 0.0)


def _stretches(joins: batch_lib.Joins, lanes: lanes_lib.Lanes) -> _Stretches:
  length, size = lanes.length, lanes.count * lanes.length
  exists_N = joins.first_N >= 0
  first_N = jnp.where(
      exists_N, lanes.index(jnp.maximum(joins.first_N, 0)), size
  )
  order_N = jnp.argsort(first_N)
  sorted_N = first_N[order_N]
  next_N = jnp.append(sorted_N[1:], size)
  end_N = jnp.minimum(next_N - 1, lanes.row_end(sorted_N))
  end_N = jnp.zeros_like(end_N).at[order_N].set(end_N)
  # Out of range, so that what is scattered there is dropped.
  end_lane_N = jnp.where(exists_N, end_N // length, lanes.count)
  edge_M = (jnp.arange(lanes.count) + 1) * length - 1
  at_edge_M = jnp.searchsorted(sorted_N, edge_M, side='right') - 1
  same_row_M = (
      sorted_N[jnp.maximum(at_edge_M, 0)] // lanes.padded
      == edge_M // lanes.padded
  )
  return _Stretches(
      exists_N=exists_N,
      first_step_N=first_N % length,
      first_lane_N=jnp.minimum(first_N // length, lanes.count - 1),
      end_step_N=end_N % length,
      end_lane_N=end_lane_N,
      ends_here_M=jnp.zeros(lanes.count, bool)
      .at[end_lane_N]
      .set(True, mode='drop'),
      order_N=order_N,
      at_edge_M=jnp.where(same_row_M, at_edge_M, -1),
  )


class _Steps(NamedTuple):
  """What a scan reads at each step.

  Attributes:
    delta_KM: residuals.
    decays_KM: gamma and lambda apply after the position.
    ends_KM: a stretch ends at the position.
    varying: [K, M] rates by index, for rates that are not constant.
  """

  delta_KM: jax.Array
  decays_KM: jax.Array
  ends_KM: jax.Array
  varying: dict[int, jax.Array]

  def columns(self, lane_N: jax.Array) -> '_Steps':
    """The same for some lanes."""
    return jax.tree.map(lambda array_KM: array_KM[:, lane_N], self)


def _steps(joins, lanes, delta_BT, rates, stretches) -> _Steps:
  delta_KM = lanes.split(delta_BT)
  return _Steps(
      delta_KM=delta_KM,
      decays_KM=lanes.split(joins.decay_BT),
      ends_KM=jnp.zeros(delta_KM.shape, bool)
      .at[stretches.end_step_N, stretches.end_lane_N]
      .set(True, mode='drop'),
      varying={
          index: lanes.split(rate.value_BT)
          for index, rate in enumerate(rates)
          if rate.value_BT is not None
      },
  )


def _advance(state: Affine, step: _Steps, rates: Sequence[Rate]) -> Affine:
  """Maps one position further to the left."""
  # One array over all rates keeps a step a single loop.
  column = lambda values: jnp.stack(values)[:, None]
  rate = column([
      jnp.float32(0.0 if index in step.varying else rate.constant)
      for index, rate in enumerate(rates)
  ])
  for index, values in step.varying.items():
    is_it = np.arange(len(rates))[:, None] == index
    rate = rate + jnp.where(is_it, values, 0.0)
  c = jnp.where(step.decays_KM, rate, 1.0)
  value = jnp.where(step.ends_KM, 0.0, state.value)
  scale = jnp.where(step.ends_KM, 1.0, state.scale)
  return Affine(step.delta_KM + c * value, c * scale)


def _scan_maps(count: int, steps: _Steps, rates: Sequence[Rate]) -> Affine:
  """Map of each lane's leftmost stretch, to its end or the lane's."""
  state, _ = jax.lax.scan(
      lambda state, step: (_advance(state, step, rates), None),
      _identity((len(rates), count)),
      steps,
      reverse=True,
  )
  return state


def _follow_rows(
    lanes: lanes_lib.Lanes, chunk: Affine, ends_here_M: jax.Array
) -> Affine:
  """Map from the end of the stretch at each lane's right edge to that edge."""

  def step(beyond, inputs):
    here, ends_here_B = inputs
    return _where(ends_here_B, here, here.after(beyond)), beyond

  by_row = lambda array: jnp.moveaxis(lanes.by_row(array), -1, 0)
  from_row = lambda array: lanes.from_row(jnp.moveaxis(array, 0, -1))
  _, beyond = jax.lax.scan(
      step,
      _identity((chunk.value.shape[0], lanes.rows)),
      jax.tree.map(by_row, (chunk, ends_here_M)),
      reverse=True,
  )
  return jax.tree.map(from_row, beyond)


def _heads(lanes, steps, rates, stretches) -> Affine:
  """Map of each stretch's part in the lane where it begins; [rate, N]."""

  def step(state, inputs):
    index, columns = inputs
    begun_N = index >= stretches.first_step_N
    return _where(begun_N, _advance(state, columns, rates), state), None

  state, _ = jax.lax.scan(
      step,
      _identity((len(rates), stretches.first_lane_N.shape[0])),
      (
          jnp.arange(lanes.length),
          steps.columns(stretches.first_lane_N),
      ),
      reverse=True,
  )
  return state


def _follow_rollouts(
    joins: batch_lib.Joins,
    stretches: _Stretches,
    head: Affine,
    beyond: Affine,
) -> jax.Array:
  """A of the first transition after each segment, in its rollout; [rate, N].

  N is sorted by rollout and time, so the chain of a rollout is a run of N.
  """
  goes_on_N = stretches.end_lane_N != stretches.first_lane_N
  further = jax.tree.map(lambda x_M: x_M[:, stretches.first_lane_N], beyond)
  whole = _where(goes_on_N, head.after(further), head)
  # A segment without a transition is crossed (G3).
  whole = _where(stretches.exists_N, whole, _identity(head.value.shape))

  def step(first, inputs):
    segment, continues = inputs
    ahead = jnp.where(continues, first, 0.0)
    return segment.value + segment.scale * ahead, ahead

  _, ahead = jax.lax.scan(
      step,
      jnp.zeros(head.value.shape[0]),
      (jax.tree.map(jnp.transpose, whole), joins.continues_N),
      reverse=True,
  )
  return ahead.T


def _scan_sums(steps, rates, stretches, ahead, start) -> list[jax.Array]:
  """A at every step; lanes start from what lies beyond their right edge."""
  # What comes after a segment enters at the end of its stretch, a position
  # that is no transition and has no residual of its own.
  entering = [
      jnp.zeros_like(steps.delta_KM)
      .at[stretches.end_step_N, stretches.end_lane_N]
      .set(ahead_N, mode='drop')
      for ahead_N in ahead
  ]

  def step(state, inputs):
    columns, entering_M = inputs
    sums = []
    for index, rate in enumerate(rates):
      c = columns.varying.get(index, rate.constant)
      beyond = jnp.where(columns.ends_KM, entering_M[index], state[index])
      c = jnp.where(columns.decays_KM, c, 1.0)
      sums.append(columns.delta_KM + c * beyond)
    return sums, sums

  _, sums = jax.lax.scan(step, list(start), (steps, entering), reverse=True)
  return sums
