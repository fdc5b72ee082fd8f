"""Figures of ended rollouts: one count per rollout, never per row."""

from collections.abc import Iterable, Sequence

import numpy as np

from rl_tpu.records import records
from rl_tpu.types import termination as term

Judged = tuple[records.Rollout, term.Verdict]
Figures = dict[str, float | None]

_EXCLUDED = (
    term.Termination.INFRA_FAILURE,
    term.Termination.CANCELLED,
)


def is_solved(rollout: records.Rollout) -> bool | None:
  """What table 2.2 counts in the success rate; None where it does not count.

  success and failure say so themselves, a violation is never a success, any
  other end is judged by the verifier's predicate.
  """
  kind = rollout.termination
  if kind in _EXCLUDED:
    return None
  if kind == term.Termination.SUCCESS:
    return True
  if kind == term.Termination.FAILURE:
    return False
  if kind == term.Termination.RUNTIME_ABORT:
    if rollout.abort_cause == term.AbortCause.POLICY_VIOLATION:
      return False
    if rollout.abort_cause != term.AbortCause.RESOURCE_LIMIT:
      return None
  return rollout.solved


def success_figures(
    admitted: Sequence[Judged], discarded: Sequence[records.Rollout]
) -> Figures:
  """A6: success over scored rollouts, and with the lost ones as failures."""
  scored = []
  truncated_as_failure = []
  solved_of_all = [0.0] * len(discarded)
  for rollout, verdict in admitted:
    solved = is_solved(rollout)
    is_used = verdict.score is not None and solved is not None
    if is_used:
      scored.append(float(solved))
    counts = bool(is_used and solved)
    solved_of_all.append(float(counts))
    truncated = term.is_truncation(rollout.termination, rollout.abort_cause)
    truncated_as_failure.append(float(counts and not truncated))
  return {
      'reward/success': _mean(scored),
      'reward/success_truncated_as_failure': _mean(truncated_as_failure),
      'reward/success_discarded_as_failure': _mean(solved_of_all),
  }


def reward_figures(
    admitted: Sequence[Judged], discarded: Sequence[records.Rollout]
) -> Figures:
  """Success, the raw score, and every raw component as a sum per rollout."""
  figures = success_figures(admitted, discarded)
  raw = [
      rollout.terminal_reward
      for rollout, verdict in admitted
      if verdict.score is not None and rollout.terminal_reward is not None
  ]
  figures['reward/raw'] = _mean(raw)
  figures['reward/positive_on_violation'] = float(
      sum(verdict.positive_on_violation for _, verdict in admitted)
  )
  figures['reward/verifier_faults'] = float(
      sum(r.fault_cause == term.FaultCause.VERIFIER for r in discarded)
  )
  names = {n for rollout, _ in admitted for n in rollout.reward_components}
  for name in sorted(names - {'terminal'}):
    sums = [
        sum(value for _, _, value in rollout.reward_components.get(name, ()))
        for rollout, _ in admitted
    ]
    figures[f'reward/component/{name}'] = _mean(sums)
  for name in sorted({n for r, _ in admitted for n in r.score_components}):
    figures[f'reward/score/{name}'] = _mean(
        rollout.score_components[name]
        for rollout, _ in admitted
        if name in rollout.score_components
    )
  figures |= _by('source', admitted) | _by('family', admitted)
  return figures


def _by(key: str, admitted: Sequence[Judged]) -> Figures:
  attribute = {'source': 'source', 'family': 'task_family'}[key]
  groups: dict[str, list[Judged]] = {}
  for judged in admitted:
    groups.setdefault(getattr(judged[0], attribute), []).append(judged)
  return {
      f'reward/success_{key}/{name}': success_figures(group, ())[
          'reward/success'
      ]
      for name, group in sorted(groups.items())
  }


def rollout_figures(
    admitted: Sequence[Judged], discarded: Sequence[records.Rollout]
) -> Figures:
  """Lengths, ends, cuts, tool use and discards of all ended rollouts."""
  ended = [rollout for rollout, _ in admitted] + list(discarded)
  if not ended:
    return {}
  turns = [num_turns(r) for r in ended]
  figures: Figures = {}
  figures |= distribution('rollout/tokens', [r.num_tokens for r in ended])
  figures |= distribution('rollout/actions', [r.num_actions for r in ended])
  figures |= distribution('rollout/turns', turns)
  figures |= distribution('rollout/segments', [r.num_segments for r in ended])
  figures['rollout/multi_segment'] = _mean(r.num_segments > 1 for r in ended)
  figures['rollout/compactions'] = _mean(num_compactions(r) for r in ended)
  for cause in term.CutCause:
    count = _mean(num_cuts(r, cause) for r in ended)
    if count:
      figures[f'rollout/cuts/{cause.value}'] = count
  for kind in term.Termination:
    share = _mean(r.termination == kind for r in ended)
    figures[f'rollout/end/{kind.value}'] = share
  for reason in term.DiscardReason:
    share = sum(r.discard_reason == reason for r in discarded) / len(ended)
    if share:
      figures[f'rollout/discarded/{reason.value}'] = share
  for cause, count in fault_counts(ended).items():
    figures[f'rollout/fault/{cause.value}'] = float(count)
  return figures | _counters(ended, turns)


def failed(ended: Sequence[records.Rollout]) -> list[records.Rollout]:
  """The infrastructure failures."""
  kind = term.Termination.INFRA_FAILURE
  return [rollout for rollout in ended if rollout.termination == kind]


def fault_counts(
    ended: Sequence[records.Rollout],
) -> dict[term.FaultCause, int]:
  """How many infrastructure failures had each cause (A5)."""
  causes = [rollout.fault_cause for rollout in failed(ended)]
  return {c: causes.count(c) for c in term.FaultCause if c in causes}


def _counters(
    ended: Sequence[records.Rollout], turns: Sequence[int]
) -> Figures:
  names = sorted({name for r in ended for name in r.counters})
  sums = {n: float(sum(r.counters.get(n, 0) for r in ended)) for n in names}
  figures: Figures = {}
  calls = sums.pop('tool_calls', None)
  failed = sums.pop('tool_errors', 0.0)
  if calls is not None:
    figures['rollout/tool_calls'] = calls / len(ended)
    figures['rollout/tool_calls_per_turn'] = calls / max(sum(turns), 1)
    figures['rollout/tool_errors'] = failed / calls if calls else None
  for name, total in sums.items():
    figures[f'rollout/counter/{name}'] = total / len(ended)
  return figures


def num_turns(rollout: records.Rollout) -> int:
  """Turns that have a stored action, over all segments."""
  ids = [s.turn_id[s.turn_id >= 0] for s in rollout.segments]
  return len(np.unique(np.concatenate(ids))) if ids else 0


def num_compactions(rollout: records.Rollout) -> int:
  """Compaction cuts among the stored segments."""
  return sum(s.end_kind == term.Cut.COMPACTION for s in rollout.segments)


def num_cuts(rollout: records.Rollout, cause: term.CutCause) -> int:
  """Compaction cuts of one cause among the stored segments."""
  return sum(s.cut_cause == cause.value for s in rollout.segments)


def distribution(prefix: str, values: Sequence[float]) -> Figures:
  """Mean, median, 95th percentile and largest of one number per rollout."""
  array = np.asarray(values, np.float64)
  if not array.size:
    return {}
  p50, p95 = np.quantile(array, (0.5, 0.95))
  return {
      f'{prefix}_mean': float(array.mean()),
      f'{prefix}_p50': float(p50),
      f'{prefix}_p95': float(p95),
      f'{prefix}_max': float(array.max()),
  }


def advantage_figures(
    advantage: np.ndarray, normalised: np.ndarray | None = None
) -> Figures:
  """G18 over the tokens of the policy mask, before and after normalising."""
  advantage = np.asarray(advantage, np.float64)
  if not advantage.size:
    return {}
  figures: Figures = {
      'adv/mean': float(advantage.mean()),
      'adv/std': float(advantage.std()),
      'adv/min': float(advantage.min()),
      'adv/max': float(advantage.max()),
      'adv/positive': float((advantage > 0).mean()),
  }
  if normalised is not None:
    normalised = np.asarray(normalised, np.float64)
    figures['adv/mean_normalised'] = float(normalised.mean())
    figures['adv/std_normalised'] = float(normalised.std())
  return figures


def _mean(values: Iterable[float]) -> float | None:
  array = np.asarray(list(values), np.float64)
  return float(array.mean()) if array.size else None
