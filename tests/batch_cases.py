"""Admission, packing and the jitted recursion in one call, for tests."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.advantages import gae as gae_lib
from rl_tpu.config import schema
from rl_tpu.models import critic as critic_lib
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import termination as term

ROW_LENGTH = 64
ROWS = 8

# Value of the state before a position, by rollout id and segment index, and
# the value after the segment's last token.
Values = Mapping[tuple[str, int], tuple[Sequence[float], float | None]]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What a batch of rollouts came out as."""

  admission: admission.Admission
  batch: batching.Batch
  estimates: batch_lib.Estimates
  value_BT: np.ndarray

  def by_rollout(self, array_BT: Any) -> dict[str, list[np.ndarray]]:
    """Values per rollout id and stored segment."""
    unpacked = self.batch.unpack(np.asarray(array_BT))
    ids = [r.rollout_id for r in self.batch.rollouts]
    return dict(zip(ids, unpacked))

  def actions(self, array_BT: Any) -> dict[str, np.ndarray]:
    """Values per rollout id and action, in time order."""
    out = {}
    unpacked = self.by_rollout(array_BT)
    for rollout in self.batch.rollouts:
      pairs = sorted(
          zip(rollout.segments, unpacked[rollout.rollout_id]),
          key=lambda pair: pair[0].segment_index,
      )
      out[rollout.rollout_id] = np.concatenate(
          [values[segment.is_action] for segment, values in pairs]
      )
    return out


def run(
    rollouts: Sequence[records.Rollout],
    values: Values,
    *,
    gae: schema.GaeConfig,
    level: str = 'token',
    rules: term.TerminationRules = term.TerminationRules(),
    data: schema.DataConfig = schema.DataConfig(),
    kl: Mapping[tuple[str, int], Sequence[float]] | None = None,
    summary_in_policy_loss: bool = True,
    row_length: int = ROW_LENGTH,
    rows: int = ROWS,
    minibatches: int = 1,
    loss: schema.LossConfig = schema.LossConfig(),
    fill: float = np.nan,
    mesh: jax.sharding.Mesh | None = None,
    estimate: Callable[..., Any] | None = None,
) -> Outcome:
  """Admits, packs and estimates; `fill` stands where nothing may be read."""
  admitted = admission.admit(
      rollouts,
      termination=rules,
      data=data,
      reward=schema.RewardConfig(weights={'terminal': 1.0, 'step': 1.0}),
      row_length=row_length,
  )
  batch = batching.build(
      admitted,
      batching=schema.BatchingConfig(
          row_length=row_length,
          rows_per_microbatch=rows,
          minibatches=minibatches,
      ),
      gae=gae,
      critic=schema.CriticConfig(level=level),
      loss=loss,
      compaction=schema.CompactionConfig(
          summary_in_policy_loss=summary_in_policy_loss
      ),
  )
  head_BT = _heads(batch, values, fill)
  kl_BT = None if kl is None else _spread(batch, kl, fill)
  arguments = (
      batch.segments.joins, batch.segments.rows.position_BT, head_BT, kl_BT
  )
  if mesh is not None:
    arguments = jax.tree.map(functools.partial(_place, mesh), arguments)
  if estimate is None:
    estimates, value_BT = _estimate(gae, level, arguments)
  else:
    estimates, value_BT = estimate(*arguments)
  estimates = jax.tree.map(np.asarray, estimates)
  return Outcome(admitted, batch, estimates, np.asarray(value_BT))


def _place(mesh: jax.sharding.Mesh, array: Any) -> jax.Array:
  spec = jax.sharding.PartitionSpec(
      ('data', 'fsdp') if np.ndim(array) == 2 else None
  )
  return jax.device_put(array, jax.sharding.NamedSharding(mesh, spec))


def _estimate(
    gae: schema.GaeConfig, level: str, arguments: tuple[Any, ...]
) -> tuple[batch_lib.Estimates, jax.Array]:
  """Calls the recursion with gamma and both lambdas as traced numbers.

  The cases have dozens of them; as constants each would compile anew.
  """
  lambdas = (gae.lambda_policy, gae.lambda_critic)
  adaptive = tuple(lam.fixed is None for lam in lambdas)
  numbers = [
      gae.gamma,
      *(lam.length_adaptive if lam.fixed is None else lam.fixed
        for lam in lambdas),
  ]
  return _jitted(gae.time_unit, gae.cut, adaptive, level)(
      jnp.asarray(numbers, jnp.float32), *arguments
  )


@functools.cache
def _jitted(
    time_unit: str, cut: str, adaptive: tuple[bool, bool], level: str
) -> Callable[..., Any]:
  def estimate(numbers, joins, position_BT, head_BT, kl_BT):
    lambdas = [
        schema.LambdaConfig(**{
            'length_adaptive' if is_adaptive else 'fixed': number
        })
        for is_adaptive, number in zip(adaptive, numbers[1:])
    ]
    gae = schema.GaeConfig(
        gamma=numbers[0],
        time_unit=time_unit,
        lambda_policy=lambdas[0],
        lambda_critic=lambdas[1],
        cut=cut,
    )
    value_BT = critic_lib.align(head_BT, position_BT)
    bootstrap_R = head_BT.reshape(-1)[jnp.maximum(joins.final_R, 0)]
    estimates = gae_lib.estimate(
        joins, value_BT, bootstrap_R, gae=gae, level=level, kl_BT=kl_BT
    )
    return estimates, value_BT

  return jax.jit(estimate)


def _heads(batch: batching.Batch, values: Values, fill: float) -> np.ndarray:
  """Value head: index q holds V_{q+1}, the last one the final value (V0)."""
  head_BT = np.full(batch.time_BT.shape, fill, np.float32)
  # `unpack` gives views, so writing to them fills the rows.
  for rollout, parts in zip(batch.rollouts, batch.unpack(head_BT)):
    for segment, part in zip(rollout.segments, parts):
      value, final = values[rollout.rollout_id, segment.segment_index]
      part[:-1] = value[1:]
      part[-1] = fill if final is None else final
  return head_BT


def _spread(batch: batching.Batch, columns: Any, fill: float) -> np.ndarray:
  array_BT = np.full(batch.time_BT.shape, fill, np.float32)
  for rollout, parts in zip(batch.rollouts, batch.unpack(array_BT)):
    for segment, part in zip(rollout.segments, parts):
      part[:] = columns[rollout.rollout_id, segment.segment_index]
  return array_BT
