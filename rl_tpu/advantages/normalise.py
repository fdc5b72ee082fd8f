"""Advantages brought to one scale (G17), in float64 on the host.

`advantage.norm` is none, batch or source. Mean and population deviation are
those of the policy_mask tokens of the whole batch, before it is cut into
minibatches, so that rows, minibatches and devices cannot change them (K13).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_tpu.config import schema
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import shapes
from rl_tpu.types import statistics

NORMS = ('none', 'batch', 'source')
# A source's running statistics count from this many `min_count` on (G17).
_SEEN_FACTOR = 10


Statistics = statistics.Statistics
Running = statistics.Running
measure = statistics.measure
merge = statistics.merge
state = statistics.state
from_state = statistics.from_state


def normalise(
    advantage_BT: Any,
    joins: batch_lib.Joins,
    *,
    config: schema.AdvantageConfig,
    sources: Sequence[str],
    running: Mapping[str, Statistics],
) -> tuple[np.ndarray, Running]:
  """Applies `advantage.norm` to a whole batch.

  Args:
    advantage_BT: advantage of every token; read under the policy mask only.
    joins: policy mask and, for every token, its rollout's source.
    config: norm, eps, std_floor and min_count.
    sources: names that `joins.source_R` indexes.
    running: statistics of earlier batches by source.

  Returns:
    float32 advantages, 0 off the policy mask, and the statistics with this
    batch in them (unchanged unless norm is source).

  Raises:
    ValueError: a norm that does not exist.
  """
  advantage_BT = np.asarray(advantage_BT)
  mask_BT = np.asarray(joins.policy_mask_BT, bool)
  rollout_BT = np.asarray(joins.rollout_BT)
  shapes.check_shapes(
      advantage_BT=advantage_BT, mask_BT=mask_BT, rollout_BT=rollout_BT
  )
  values = advantage_BT[mask_BT].astype(np.float64)
  running = dict(running)
  if config.norm == 'batch':
    values = whiten(values, eps=config.eps, std_floor=config.std_floor)
  elif config.norm == 'source':
    source = np.asarray(joins.source_R)[rollout_BT[mask_BT]]
    values, running = whiten_sources(
        values, source, config=config, sources=sources, running=running
    )
  elif config.norm != 'none':
    raise ValueError(
        f'advantage.norm must be one of {", ".join(NORMS)}, got'
        f' {config.norm!r}.'
    )
  out_BT = np.zeros(mask_BT.shape, np.float32)
  out_BT[mask_BT] = values
  return out_BT, running


def whiten(values: np.ndarray, *, eps: float, std_floor: float) -> np.ndarray:
  """(A - m) / (s + eps) by the values' own mean and population deviation.

  Degenerate values (G15) are centred and not divided; a single one is
  degenerate and comes out as 0 (K16).
  """
  found = measure(values)
  degenerate = statistics.is_degenerate(found.std, values, floor=std_floor)
  return (values - found.mean) / (1.0 if degenerate else found.std + eps)


def whiten_sources(
    values: np.ndarray,
    source: np.ndarray,
    *,
    config: schema.AdvantageConfig,
    sources: Sequence[str],
    running: Mapping[str, Statistics],
) -> tuple[np.ndarray, Running]:
  """Whitens each source by itself, a small one by its running statistics.

  Args:
    values: float64 advantages of the policy tokens.
    source: index into `sources` of every value.
    config: eps, std_floor and min_count.
    sources: names of the sources.
    running: statistics of earlier batches; the present batch is not in them.

  Returns:
    The values, and the statistics with this batch merged in.
  """
  out, running = values.copy(), dict(running)
  for index in np.unique(source):
    here = source == index
    name, part = sources[index], values[here]
    earlier = running.get(name, Statistics())
    raw = 0
    if len(part) >= config.min_count:
      out[here] = whiten(part, eps=config.eps, std_floor=config.std_floor)
    elif earlier.count >= _SEEN_FACTOR * config.min_count:
      out[here] = _whiten_by(earlier, part, config)
    else:
      raw = len(part)
    if not np.isfinite(part).all():
      continue  # No step is taken on it (L18), and nothing is learnt from it.
    merged = merge(earlier, measure(part))
    running[name] = dataclasses.replace(merged, raw=earlier.raw + raw)
  return out, running


def _whiten_by(
    earlier: Statistics, values: np.ndarray, config: schema.AdvantageConfig
) -> np.ndarray:
  # |mean| stands for the largest |A| ever seen: where a deviation is a
  # millionth of that, all but a billionth of the values lie at the mean.
  degenerate = statistics.is_degenerate(
      earlier.std, np.asarray([earlier.mean]), floor=config.std_floor
  )
  return (values - earlier.mean) / (
      1.0 if degenerate else earlier.std + config.eps
  )
