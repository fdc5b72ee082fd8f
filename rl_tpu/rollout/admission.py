"""Which rollouts are trained on, and why the others are not (T11, A5)."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.rewards import scaling
from rl_tpu.rollout import chain
from rl_tpu.rollout import comparison
from rl_tpu.rollout import scoring
from rl_tpu.rollout import staleness as staleness_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term

_Reason = term.DiscardReason

# Rollouts -> KL of the sampler to the policy, by rollout id.
MeasureKl = Callable[[Sequence[records.Rollout]], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Admitted:
  """A rollout that goes into the batch.

  Attributes:
    rollout: its record.
    verdict: what the termination table says (2.2).
    score: weighted, normalised terminal reward in use; 0 where none is (T2).
    subgroup: which rollouts it is compared with (E7); None without groups.
    scored: all its rewards; None takes those of the record.
  """

  rollout: records.Rollout
  verdict: term.Verdict
  score: float
  subgroup: int | None = None
  scored: scoring.Scored | None = None


@dataclasses.dataclass(frozen=True)
class Discard:
  """A rollout that does not train the actor."""

  rollout: records.Rollout
  reason: term.DiscardReason
  detail: str = ''


@dataclasses.dataclass(frozen=True)
class Admission:
  """The decision on one batch of rollouts.

  Attributes:
    admitted: what is packed, in the order of the batch: the policy batch, and
      rollouts that only the critic keeps (T6).
    discards: what does not train the actor, critic-only rollouts included.
    counters: figures for the log, by name.
  """

  admitted: tuple[Admitted, ...]
  discards: tuple[Discard, ...]
  counters: Mapping[str, float]

  @property
  def judged(self) -> list[tuple[records.Rollout, term.Verdict]]:
    """The policy batch with its verdicts."""
    return [
        (a.rollout, a.verdict)
        for a in self.admitted
        if a.verdict.in_policy_batch
    ]

  @property
  def discarded(self) -> list[records.Rollout]:
    """Rollouts that do not train the actor, their reason written in."""
    return [
        dataclasses.replace(d.rollout, discard_reason=d.reason)
        for d in self.discards
    ]

  @property
  def discard_counts(self) -> dict[term.DiscardReason, int]:
    """How many rollouts each reason took."""
    counts: dict[term.DiscardReason, int] = {}
    for discard in self.discards:
      counts[discard.reason] = counts.get(discard.reason, 0) + 1
    return counts


def admit(
    rollouts: Sequence[records.Rollout],
    *,
    termination: term.TerminationRules,
    data: schema.DataConfig,
    row_length: int,
    reward: schema.RewardConfig | None = None,
    group: schema.GroupConfig | None = None,
    estimator: str = 'gae',
    current_version: int | None = None,
    known_versions: Collection[int] | None = None,
    reject: Callable[[records.Rollout], bool] | None = None,
    scales: scaling.Scales | None = None,
    allow_unreplayable: bool = False,
    staleness: schema.StalenessConfig = schema.StalenessConfig(),
    measure_kl: MeasureKl | None = None,
) -> Admission:
  """Decides every rollout by the first rule of T11 that applies.

  Args:
    rollouts: ended rollouts, in the order of the data.
    termination: settings of the termination table.
    data: dropped prefixes.
    row_length: a longer segment is `context_overlong` (P5).
    reward: component weights and mode, for the score and the check of R9.
      None takes rewards and score as the record has them.
    group: settings of the group estimators; read with one of them only.
    estimator: gae, or a group estimator, under which truncations are scored
      (E2) and groups have to be complete (E7).
    current_version: policy version being trained, for staleness (O2). None
      checks nothing.
    known_versions: versions the sampler has served (O6). None checks nothing.
    reject: a user's rule; True discards.
    scales: of the rewards (D1). None leaves them as they are.
    allow_unreplayable: keeps rollouts whose sampling support is not recorded
      (O5).
    staleness: limits of age, of the wait and of KL (O2).
    measure_kl: gives the KL of the sampler to the policy by rollout id, for
      rollouts that would otherwise be trained on. Called once, and only with
      a limit.

  Returns:
    Admitted rollouts, discards with one reason each, and counters.

  Raises:
    ValueError: members of one group under different conditions, with
      `group.on_mismatch = error` (E7).
  """
  grouped = estimator in groups.ESTIMATORS
  if grouped:
    termination = dataclasses.replace(
        termination, budget_truncation='terminal', context_truncation='terminal'
    )
  judge = _Judge(
      termination, data, row_length, reward, scales, current_version,
      known_versions, reject, allow_unreplayable, staleness,
  )
  decisions = [judge.decide(rollout) for rollout in rollouts]
  if staleness.max_kl is not None and measure_kl is not None:
    usable = [d.rollout for d in decisions if d.reason is None]
    judge = dataclasses.replace(judge, kl=measure_kl(usable))
    decisions = [judge.decide(rollout) for rollout in rollouts]
  counters = {}
  if grouped:
    decisions, counters = _complete_groups(
        decisions, group or schema.GroupConfig()
    )
  counters |= _counters(decisions)
  return Admission(
      admitted=tuple(
          d.admitted for d in decisions if d.admitted is not None
      ),
      discards=tuple(
          Discard(d.rollout, d.reason, d.detail)
          for d in decisions
          if d.reason is not None
      ),
      counters=counters,
  )


def admit_all(rollouts: Sequence[records.Rollout]) -> list[Admitted]:
  """Every rollout as it is, unscored: for imitation, which has no return."""
  verdict = term.Verdict(True, True, term.EndMode.TERMINAL, 0.0, None)
  return [Admitted(rollout, verdict, 0.0) for rollout in rollouts]


def check_scored(admission: Admission, *, max_missing: float) -> None:
  """Stops the run when too many truncated rollouts have no score (T13).

  Raises:
    RuntimeError: a larger share than `max_missing` of the truncated rollouts
      that are to be scored is not.
  """
  total = admission.counters['rollout/truncated_to_score']
  missing = admission.counters['rollout/truncated_unscored']
  if missing > max_missing * total:
    raise RuntimeError(
        f'{missing:g} of {total:g} truncated rollouts have no terminal_reward,'
        f' more than termination.max_missing = {max_missing}. Have the runtime'
        ' score the state at truncation, or bootstrap truncations.'
    )


@dataclasses.dataclass(frozen=True)
class _Decision:
  rollout: records.Rollout
  verdict: term.Verdict | None
  admitted: Admitted | None
  reason: term.DiscardReason | None
  detail: str = ''


@dataclasses.dataclass(frozen=True)
class _Judge:
  """The rules of T11 for one rollout."""

  termination: term.TerminationRules
  data: schema.DataConfig
  row_length: int
  reward: schema.RewardConfig | None
  scales: scaling.Scales | None
  current_version: int | None
  known_versions: Collection[int] | None
  reject: Callable[[records.Rollout], bool] | None
  allow_unreplayable: bool
  staleness: schema.StalenessConfig
  kl: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def decide(self, rollout: records.Rollout) -> _Decision:
    reason, detail = self._record_fault(rollout)
    if reason is not None:
      return _Decision(rollout, None, None, reason, detail)
    score_is_finite = rollout.terminal_reward is None or bool(
        np.isfinite(rollout.terminal_reward)
    )
    try:
      verdict = self._verdict(rollout, score_is_finite)
    except ValueError as error:
      return _Decision(rollout, None, None, _Reason.MALFORMED, str(error))
    kind, reward_missing = verdict.reason, _Reason.REWARD_MISSING
    detail = f'end: {rollout.termination.value}' if kind else ''
    if kind in (None, reward_missing):
      if kind or self._reward_missing(rollout, verdict, score_is_finite):
        kind, detail = reward_missing, 'no finite reward'
    if kind is None or verdict.in_critic_batch:
      later, later_detail = self._later_fault(rollout)
      # A critic-only rollout keeps its first reason (T6), whatever follows.
      if later is not None:
        if kind is None:
          kind, detail = later, later_detail
        verdict = dataclasses.replace(verdict, in_critic_batch=False)
    admitted = None
    if kind is None or (verdict.in_critic_batch and kind != reward_missing):
      scored = scoring.score(
          rollout, verdict, reward=self.reward, scales=self.scales
      )
      admitted = Admitted(rollout, verdict, scored.score, scored=scored)
    return _Decision(rollout, verdict, admitted, kind, detail)

  def _record_fault(self, rollout: records.Rollout):
    """Faults of the record: they stand before the kind of the end."""
    weights = None if self.reward is None else self.reward.weights
    problem = chain.malformed_problem(rollout, weights=weights)
    if problem is None and self.known_versions is not None:
      problem = _version_problem(rollout, self.known_versions)
    if problem is not None:
      return _Reason.MALFORMED, problem
    problem = chain.chain_problem(
        rollout, allow_dropped_prefix=self.data.allow_dropped_prefix
    )
    claimed = rollout.discard_reason
    for reason, applies, detail in (
        (_Reason.MALFORMED, False, ''),
        (_Reason.TOKEN_MISMATCH, False, ''),
        (_Reason.BROKEN_CHAIN, problem is not None, problem or ''),
        (_Reason.NO_ACTION_TOKENS, not rollout.num_actions, ''),
        (
            _Reason.SUPPORT_UNREPLAYABLE,
            not self.allow_unreplayable and _is_unreplayable(rollout),
            '',
        ),
    ):
      if applies or claimed == reason:
        return reason, detail
    return None, ''

  def _verdict(self, rollout, score_is_finite) -> term.Verdict:
    return term.judge(
        rollout.termination,
        abort_cause=rollout.abort_cause,
        terminal_reward=rollout.terminal_reward if score_is_finite else None,
        budget_visible=rollout.budgets.budget_visible,
        holds_at_eval=rollout.budgets.holds_at_eval,
        rules=self.termination,
    )

  def _reward_missing(self, rollout, verdict, score_is_finite) -> bool:
    """NaN and inf are a failed scoring, not a number, and not 0 (K35)."""
    if verdict.end_mode == term.EndMode.TERMINAL and not score_is_finite:
      return True
    if rollout.discard_reason == _Reason.REWARD_MISSING:
      return True
    return not _rewards_are_finite(rollout)

  def _later_fault(self, rollout: records.Rollout):
    """What is decided after the kind of the end and the reward."""
    claimed = rollout.discard_reason
    longest = max(len(s) for s in rollout.segments)
    over = staleness_lib.over_limit(
        rollout,
        self.staleness,
        current_version=self.current_version,
        kl=self.kl,
    )
    for reason, applies, detail in (
        (_Reason.REWARD_MISSING, not _rewards_are_finite(rollout), 'reward'),
        (_Reason.SAFETY_REFUSAL, False, ''),
        (_Reason.STALE, bool(over), over),
        (
            _Reason.FILTERED_BY_USER_RULE,
            self.reject is not None and self.reject(rollout),
            '',
        ),
        (
            _Reason.CONTEXT_OVERLONG,
            longest > self.row_length,
            f'a segment of {longest} tokens, rows of {self.row_length}',
        ),
        (_Reason.GROUP_INCOMPLETE, False, ''),
        (
            _Reason.NONFINITE,
            not _logprobs_are_finite(rollout),
            'behaviour_logprob',
        ),
    ):
      if applies or claimed == reason:
        return reason, detail
    return None, ''


def _version_problem(
    rollout: records.Rollout, known: Collection[int]
) -> str | None:
  for segment in rollout.segments:
    versions = np.unique(segment.behaviour_version[segment.is_action])
    unknown = [int(v) for v in versions if int(v) not in known]
    if unknown:
      return f'policy versions {unknown} were never served (O6)'
  return None


def _is_unreplayable(rollout: records.Rollout) -> bool:
  """True if a token was drawn from a part that is not recorded (R5)."""
  return any(_lacks_support(s) for s in rollout.segments)


def _lacks_support(segment: records.Segment) -> bool:
  sampling = segment.sampling
  if sampling is None:
    return False
  truncates = support_lib.truncates(
      sampling.top_k, sampling.top_p, sampling.min_p
  )
  if segment.support is None:
    return truncates
  count = segment.support.count[segment.is_action]
  is_missing = truncates & (count == support_lib.WHOLE)
  return bool(np.any((count == support_lib.TOO_LARGE) | is_missing))


def _rewards_are_finite(rollout: records.Rollout) -> bool:
  return all(np.isfinite(s.reward).all() for s in rollout.segments)


def _logprobs_are_finite(rollout: records.Rollout) -> bool:
  return all(
      np.isfinite(s.behaviour_logprob[s.is_action]).all()
      for s in rollout.segments
  )


def _complete_groups(
    decisions: Sequence[_Decision], group: schema.GroupConfig
) -> tuple[list[_Decision], dict[str, float]]:
  """Discards members without enough to be compared with (E7, E11)."""
  found = comparison.subgroups(
      [
          comparison.Candidate(d.rollout, d.admitted.scored.scale.scale_id)
          for d in decisions
          if d.reason is None
      ],
      [d.rollout for d in decisions],
      config=group,
  )
  out = []
  for decision in decisions:
    # A group estimator has no critic, so nothing is kept for one (E2).
    changes = {'admitted': None}
    subgroup = found.of.get(decision.rollout.rollout_id)
    if decision.reason is None and subgroup is not None:
      changes['admitted'] = dataclasses.replace(
          decision.admitted, subgroup=subgroup
      )
    elif decision.reason is None:
      changes['reason'] = _Reason.GROUP_INCOMPLETE
      changes['detail'] = (
          f'fewer than {group.min_size} comparable members, or'
          ' group.on_mismatch=drop'
      )
    out.append(dataclasses.replace(decision, **changes))
  return out, {
      'group/mismatched': float(found.mismatched),
      'group/shared_tenant': float(found.shared_tenant),
  }


def _counters(decisions: Sequence[_Decision]) -> dict[str, float]:
  to_score = [
      d
      for d in decisions
      if d.verdict is not None
      and d.verdict.end_mode == term.EndMode.TERMINAL
      and term.is_truncation(d.rollout.termination, d.rollout.abort_cause)
  ]
  return {
      'reward/positive_on_violation': float(
          sum(
              d.verdict is not None and d.verdict.positive_on_violation
              for d in decisions
          )
      ),
      'rollout/truncated_to_score': float(len(to_score)),
      'rollout/truncated_unscored': float(
          sum(d.reason == _Reason.REWARD_MISSING for d in to_score)
      ),
      'rollout/critic_only': float(
          sum(bool(d.admitted and d.reason) for d in decisions)
      ),
  }
