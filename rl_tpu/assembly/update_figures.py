"""What the updates of a batch look like in figures (L10, L18, L19, L21)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rl_tpu.learner import report as report_lib
from rl_tpu.losses import statistics
from rl_tpu.metrics import expert_load
from rl_tpu.records import records
from rl_tpu.rollout import batching

# The objective's statistics under the names of the dashboard.
_ACTOR_TAGS = {
    'loss': 'loss/total',
    'policy_loss': 'loss/policy',
    'kl_loss': 'loss/kl',
    'entropy_loss': 'loss/entropy',
    'entropy': 'policy/entropy',
    'approx_kl_k1': 'policy/approx_kl_k1',
    'approx_kl_k3': 'policy/approx_kl_k3',
    'reference_kl_k1': 'policy/kl_reference_k1',
    'reference_kl_k3': 'policy/kl_reference_k3',
    'clip_high': 'policy/clip_high',
    'clip_low': 'policy/clip_low',
    'dual_clip': 'policy/clip_dual',
    'gated_fraction': 'policy/gated',
    'effective_share': 'policy/effective_share',
    'ess_share': 'policy/ess_share',
    'ratio_advantage': 'policy/ratio_advantage',
    'ratio_max': 'policy/ratio_max',
    'ratio_p50': 'policy/ratio_p50',
    'ratio_p99': 'policy/ratio_p99',
    'ratio_saturated_count': 'policy/ratio_saturated',
    'over_advantage_count': 'policy/over_limit/advantage',
    'over_ratio_count': 'policy/over_limit/ratio',
    'over_proxy_count': 'policy/over_limit/proxy',
    'grad_norm': 'policy/grad_norm',
}
_FIRST_TAGS = {
    'approx_kl_k1': 'policy/kl_behaviour_k1',
    'approx_kl_k3': 'policy/kl_behaviour_k3',
    'behaviour_gap_max': 'policy/behaviour_gap_max',
    'behaviour_gap_abs': 'policy/behaviour_gap_mean',
}
_CRITIC_TAGS = {
    'loss': 'loss/value',
    'clip_fraction': 'critic/clip_fraction',
    'grad_norm': 'critic/grad_norm',
}
_REFERENCE = ('reference_kl_k1', 'reference_kl_k3')


def figures(
    report: report_lib.Report,
    batch: batching.Batch,
    count: Callable[[str, float], None],
) -> dict[str, float | None]:
  """Tags of an update; `count` adds to a counter of the run (L21)."""
  values: dict[str, float | None] = {}
  for numbers, tags in (
      (report.actor, _ACTOR_TAGS),
      (report.first, _FIRST_TAGS),
      (report.critic, _CRITIC_TAGS),
  ):
    for name, tag in tags.items():
      if name in numbers:
        values[tag] = numbers[name]
  for network, tag in (('actor', 'policy'), ('critic', 'critic')):
    skipped = len(report.skipped[network])
    count(f'{network}_steps_skipped', skipped)
    values[f'{tag}/steps_skipped'] = skipped
  count('steps_empty', report.empty)
  count('ratio_saturated', report.actor.get('ratio_saturated_count', 0.0))
  values['policy/steps_empty'] = report.empty
  for name, number in report.overflow.items():
    count(name, number)
    values[f'perf/overflow/{name}'] = number
  has_reference = _REFERENCE[0] in report.actor
  values |= _strata(report, has_reference)
  values |= _by_rollout(report, batch, has_reference)
  if report.expert_load is not None:
    values |= expert_load.figures(report.expert_load)
  for source, norm in report.source_norms.items():
    values[f'policy/grad_norm_source/{batch.sources[source]}'] = norm
  return values


def _strata(report, has_reference) -> dict[str, float]:
  """Means by token type, tenth of the rollout and length (L19)."""
  values = {}
  for (division, stratum), means in report.strata.items():
    for figure, number in means.items():
      if has_reference or figure not in _REFERENCE:
        values[f'policy/{division}/{stratum}/{figure}'] = number
  return values


def _by_rollout(report, batch, has_reference) -> dict[str, float]:
  """Loss and KL by task family, and the proxy of the gradient by source."""
  if report.rollouts is None:
    return {}
  rollouts = batch.rollouts
  table = np.asarray(report.rollouts, np.float64)[: len(rollouts)]
  column = dict(zip(statistics.ROLLOUT_FIGURES, table.T))
  families = np.asarray([r.task_family for r in rollouts])
  sources = np.asarray([r.source for r in rollouts])
  values = {}
  names = {'policy_loss': 'loss/policy_family'}
  if has_reference:
    names |= {
        'reference_kl_k1': 'policy/kl_reference_k1_family',
        'reference_kl_k3': 'policy/kl_reference_k3_family',
    }
  for family in np.unique(families):
    here = families == family
    tokens = column['count'][here].sum()
    for name, tag in names.items():
      if tokens:
        values[f'{tag}/{family}'] = float(column[name][here].sum() / tokens)
  for source in np.unique(sources):
    here = sources == source
    values[f'policy/proxy_source/{source}'] = float(column['proxy'][here].sum())
  return values


def over_limit(
    report: report_lib.Report, batch: batching.Batch
) -> dict[str, int]:
  """Tokens over a limit by rollout id, rollouts without one left out (L18)."""
  if report.rollouts is None:
    return {}
  column = statistics.ROLLOUT_FIGURES.index('over_limit')
  found = np.asarray(report.rollouts)[: len(batch.rollouts), column]
  return {
      batch.rollouts[r].rollout_id: int(found[r]) for r in np.flatnonzero(found)
  }


def nonfinite(
    report: report_lib.Report, batch: batching.Batch
) -> list[dict[str, object]]:
  """The skipped steps: what was not finite, task, rollout and segment ids.

  A minibatch that was skipped in several passes is named once.
  """
  found = {}
  for network, parts in report.skipped.items():
    for part, reasons in zip(parts, report.reasons[network]):
      found.setdefault(
          (network, part),
          {
              'network': network,
              'minibatch': part,
              'in_step': list(reasons),
              'rollouts': [_named(r) for r in batch.minibatch_rollouts(part)],
          },
      )
  return list(found.values())


def _named(rollout: records.Rollout) -> Mapping[str, str | Sequence[int]]:
  return {
      'task_id': rollout.task_id,
      'rollout_id': rollout.rollout_id,
      'segments': [s.segment_index for s in rollout.segments],
  }
