"""How a rollout ends and what that means for value, batch and score.

One enum and one table (algorithms.md 2.2) serve admission, GAE, groups,
metrics and evaluation alike.
"""

import dataclasses
import enum


class Termination(str, enum.Enum):
  """The kind of a rollout's end, written by whoever ended it (T1)."""

  SUCCESS = 'success'
  FAILURE = 'failure'
  POLICY_STOP = 'policy_stop'
  BUDGET_TRUNCATION = 'budget_truncation'
  CONTEXT_TRUNCATION = 'context_truncation'
  RUNTIME_ABORT = 'runtime_abort'
  INFRA_FAILURE = 'infra_failure'
  CANCELLED = 'cancelled'


class Cut(str, enum.Enum):
  """A boundary between two segments of one rollout: never an end."""

  COMPACTION = 'compaction_cut'
  RESUME = 'resume_cut'


class CutCause(str, enum.Enum):
  """Why a window was compacted: who asked for the cut.

  `template` is a chat template that changes what was fed before; `unknown` is
  read from records that were written before the cause was.
  """

  POLICY_SUMMARY = 'policy_summary'
  RUNTIME_SUMMARY = 'runtime_summary'
  TEMPLATE = 'template'
  UNKNOWN = 'unknown'


class AbortCause(str, enum.Enum):
  """Why the runtime ended a run by its own rule."""

  POLICY_VIOLATION = 'policy_violation'
  RESOURCE_LIMIT = 'resource_limit'
  OPERATOR = 'operator'
  UNKNOWN = 'unknown'


class FaultCause(str, enum.Enum):
  """What failed under an `infra_failure`."""

  ENVIRONMENT = 'environment'
  VERIFIER = 'verifier'
  SANDBOX = 'sandbox'
  NETWORK = 'network'
  SAMPLER = 'sampler'
  TIMEOUT = 'timeout'
  MEMORY = 'memory'


class DiscardReason(str, enum.Enum):
  """Why a rollout is not trained on, in the order of decision (T11, A5)."""

  MALFORMED = 'malformed'
  TOKEN_MISMATCH = 'token_mismatch'
  BROKEN_CHAIN = 'broken_chain'
  NO_ACTION_TOKENS = 'no_action_tokens'
  SUPPORT_UNREPLAYABLE = 'support_unreplayable'
  INFRA_FAILURE = 'infra_failure'
  CANCELLED = 'cancelled'
  RUNTIME_ABORT = 'runtime_abort'
  REWARD_MISSING = 'reward_missing'
  SAFETY_REFUSAL = 'safety_refusal'
  STALE = 'stale'
  FILTERED_BY_USER_RULE = 'filtered_by_user_rule'
  CONTEXT_OVERLONG = 'context_overlong'
  GROUP_INCOMPLETE = 'group_incomplete'
  NONFINITE = 'nonfinite'


class EndMode(str, enum.Enum):
  """What stands after the last action: 0, or the critic's value."""

  TERMINAL = 'terminal'
  BOOTSTRAP = 'bootstrap'


@dataclasses.dataclass(frozen=True)
class TerminationRules:
  """The settings of T3 to T6.

  Attributes:
    budget_truncation: auto, bootstrap or terminal.
    context_truncation: auto, bootstrap or terminal.
    runtime_abort: by_cause, terminal, bootstrap or exclude.
    infra_failure_critic: exclude or bootstrap.
    cancelled_critic: exclude or bootstrap.
    max_missing: a batch in which a larger share of terminal-mode truncations
      has no score stops the run (T13).
    max_unscored: a task with this many rollouts in a row that no outcome
      anchors raises a warning (T12).
  """

  budget_truncation: str = 'auto'
  context_truncation: str = 'auto'
  runtime_abort: str = 'by_cause'
  infra_failure_critic: str = 'exclude'
  cancelled_critic: str = 'exclude'
  max_missing: float = 0.05
  max_unscored: int = 20


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What the table says of one rollout.

  Attributes:
    in_policy_batch: its action tokens train the actor.
    in_critic_batch: its action tokens train the critic.
    end_mode: what stands after the last action.
    score: the number that enters the return at the last action (G6); None
      where none does (T2).
    reason: why it is not in the policy batch; None where it is.
    positive_on_violation: a positive score on a violation was replaced by 0.
  """

  in_policy_batch: bool
  in_critic_batch: bool
  end_mode: EndMode
  score: float | None
  reason: DiscardReason | None
  positive_on_violation: bool = False


def judge(
    termination: Termination,
    *,
    abort_cause: AbortCause | None,
    terminal_reward: float | None,
    budget_visible: bool | None,
    holds_at_eval: bool | None,
    rules: TerminationRules,
) -> Verdict:
  """Applies the table of algorithms.md 2.2 to one rollout's end.

  Raises:
    ValueError: under `auto`, a truncated record without the two budget flags
      (T3), or a `runtime_abort` without a cause.
  """
  if termination == Termination.INFRA_FAILURE:
    return _excluded(
        DiscardReason.INFRA_FAILURE, rules.infra_failure_critic == 'bootstrap'
    )
  if termination == Termination.CANCELLED:
    return _excluded(
        DiscardReason.CANCELLED, rules.cancelled_critic == 'bootstrap'
    )
  if termination == Termination.FAILURE:
    return _scored(terminal_reward or 0.0)
  if termination in (Termination.SUCCESS, Termination.POLICY_STOP):
    return _scored(terminal_reward)
  if termination == Termination.RUNTIME_ABORT:
    if abort_cause is None:
      raise ValueError('a runtime_abort must carry its abort_cause.')
    if abort_cause == AbortCause.POLICY_VIOLATION:
      score = terminal_reward or 0.0
      return dataclasses.replace(
          _scored(min(score, 0.0)), positive_on_violation=score > 0
      )
    mode = rules.runtime_abort
    if mode == 'by_cause':
      mode = (
          rules.budget_truncation
          if abort_cause == AbortCause.RESOURCE_LIMIT
          else 'exclude'
      )
    if mode == 'exclude':
      return _excluded(DiscardReason.RUNTIME_ABORT, False)
  elif termination == Termination.CONTEXT_TRUNCATION:
    mode = rules.context_truncation
  else:
    mode = rules.budget_truncation
  return _truncated(mode, terminal_reward, budget_visible, holds_at_eval)


def _excluded(reason: DiscardReason, critic: bool) -> Verdict:
  return Verdict(False, critic, EndMode.BOOTSTRAP, None, reason)


def _scored(score: float | None) -> Verdict:
  if score is None:
    return Verdict(
        False, False, EndMode.TERMINAL, None, DiscardReason.REWARD_MISSING
    )
  return Verdict(True, True, EndMode.TERMINAL, float(score), None)


def _truncated(
    mode: str,
    terminal_reward: float | None,
    budget_visible: bool | None,
    holds_at_eval: bool | None,
) -> Verdict:
  if mode == 'auto':
    if budget_visible is None or holds_at_eval is None:
      raise ValueError(
          'a truncated rollout needs budgets.budget_visible and'
          ' budgets.holds_at_eval under termination = auto.'
      )
    mode = 'terminal' if budget_visible or holds_at_eval else 'bootstrap'
  if mode == 'terminal':
    return _scored(terminal_reward)
  return Verdict(True, True, EndMode.BOOTSTRAP, None, None)


def is_truncation(
    termination: Termination, abort_cause: AbortCause | None
) -> bool:
  """True for ends that reports list as truncated."""
  return termination in (
      Termination.BUDGET_TRUNCATION,
      Termination.CONTEXT_TRUNCATION,
  ) or (
      termination == Termination.RUNTIME_ABORT
      and abort_cause == AbortCause.RESOURCE_LIMIT
  )
