"""What the updates of a batch did, as numbers on the host."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rl_tpu.learner import networks
from rl_tpu.learner import optimizers
from rl_tpu.losses import statistics

# One optimizer step: its statistics and what became of it.
Step = tuple[statistics.Stats, optimizers.StepReport]


@dataclasses.dataclass(frozen=True)
class Report:
  """Statistics, and steps that were not taken.

  Attributes:
    actor: statistics summed over the actor's steps, name to number.
    first: the same of the very first minibatch, before any step: the
      sampler's log-probabilities against the trainer's (O4).
    critic: statistics of the critic's last pass.
    skipped: minibatches whose gradient was not finite (L18), by network.
    reasons: what was not finite in each of these steps: activations, logits,
      loss, or the gradient of a parameter.
    empty: steps in which nothing was trained (K16).
    strata: means over the actor's steps by (division, stratum) (L19).
    rollouts: sums over the actor's steps by rollout, columns as in
      `statistics.ROLLOUT_FIGURES`; None where they were not collected.
    expert_load: real tokens of the actor's steps that took each expert, by
      layer, [L, E]; None of a model without experts.
    overflow: counters of L21, name to number.
    source_norms: gradient norm by dense source id; empty where it was not
      measured (L18).
  """

  actor: dict[str, float]
  first: dict[str, float]
  critic: dict[str, float]
  skipped: dict[str, list[int]]
  reasons: dict[str, list[tuple[str, ...]]]
  empty: int
  strata: dict[tuple[str, str], dict[str, float]]
  rollouts: np.ndarray | None
  expert_load: np.ndarray | None
  overflow: dict[str, float]
  source_norms: dict[int, float]


def build(
    done: Mapping[str, Sequence[Step]],
    num_parts: int,
    *,
    nonfinite: Mapping[str, int],
    source_norms: Mapping[int, Any],
) -> Report:
  """Adds the statistics of all steps up.

  Args:
    done: steps by network, in order, on the host.
    num_parts: minibatches of one pass.
    nonfinite: positions whose score was not finite, by part.
    source_norms: gradient norm by source.
  """
  skipped: dict[str, list[int]] = {'actor': [], 'critic': []}
  reasons: dict[str, list[tuple[str, ...]]] = {'actor': [], 'critic': []}
  overflow = {f'nonfinite_{name}': float(n) for name, n in nonfinite.items()}
  numbers: dict[str, dict[str, float]] = {}
  totals: dict[str, statistics.Stats] = {}
  empty = 0
  for network, steps in done.items():
    for index, (stats, step) in enumerate(steps):
      if step.empty:
        empty += 1
      elif not step.finite:
        skipped[network].append(index % num_parts)
        reasons[network].append(_reasons(stats, step))
    # Of the critic's passes the last one is reported: it shows what the fit
    # has come to.
    kept = steps[-num_parts:] if network == 'critic' else steps
    totals[network] = _merged([stats for stats, _ in kept])
    numbers[network] = statistics.values(totals[network])
    if kept:
      norms = [float(step.gradient_norm) for _, step in kept]
      numbers[network]['grad_norm'] = float(np.mean(norms))
    whole = statistics.values(_merged([stats for stats, _ in steps]))
    overflow |= _overflow(network, whole, steps)
  actor, shared = _split(numbers['actor'])
  first = {}
  if done['actor']:
    first = _split(statistics.values(done['actor'][0][0]))[0]
  tables = totals['actor']
  strata = {}
  if 'strata_table' in tables:
    strata = statistics.strata_values(tables['strata_table'])
  return Report(
      actor=actor,
      first=first,
      critic=numbers['critic'] or shared,
      skipped=skipped,
      reasons=reasons,
      empty=empty,
      strata=strata,
      rollouts=tables.get('rollout_table'),
      expert_load=tables.get('expert_load_table'),
      overflow=overflow,
      source_norms={k: float(v) for k, v in source_norms.items()},
  )


def _reasons(
    stats: statistics.Stats, step: optimizers.StepReport
) -> tuple[str, ...]:
  """What was not finite in a step, in the order of the computation."""
  numbers = statistics.values(stats)
  found = [
      part
      for part in ('activations', 'logits')
      if numbers.get(f'nonfinite_{part}_count')
  ]
  if not np.isfinite(numbers.get('loss', 0.0)):
    found.append('loss')
  leaves = jax.tree_util.tree_leaves_with_path(step.nonfinite)
  names = [
      jax.tree_util.keystr(path, simple=True, separator='/')
      for path, is_bad in leaves
      if is_bad
  ]
  if names and len(names) == len(leaves):
    names = ['every parameter']
  if not names and not np.isfinite(step.gradient_norm):
    names = ['all parameters together']
  return (*found, *(f'gradient of {name}' for name in names))


def _merged(stats: Sequence[statistics.Stats]) -> statistics.Stats:
  total: statistics.Stats = {}
  for one in stats:
    total = statistics.merge(total, one) if total else one
  return total


def _split(
    numbers: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, float]]:
  """The actor's statistics, and those of a critic on the same backbone."""
  prefix = networks.CRITIC
  critic = {
      name.removeprefix(prefix): value
      for name, value in numbers.items()
      if name.startswith(prefix)
  }
  actor = {n: v for n, v in numbers.items() if not n.startswith(prefix)}
  return actor, critic


def _overflow(
    network: str, numbers: Mapping[str, float], steps: Sequence[Step]
) -> dict[str, float]:
  """Counters of one network (L21)."""
  found = {
      f'{network}_steps_clipped': float(sum(bool(s.clipped) for _, s in steps)),
      f'{network}_gradient_flushed': float(sum(s.flushed for _, s in steps)),
  }
  for name in ('nonfinite_activations', 'nonfinite_logits'):
    for place, prefix in (('', network), (networks.CRITIC, 'critic')):
      key = f'{place}{name}_count'
      if key in numbers:
        found[f'{prefix}_{name}'] = numbers[key]
  return found
