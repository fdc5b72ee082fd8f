"""Host records: task, segment, rollout (algorithms.md section 1).

Arrays are numpy, one entry per position. Records are written by the recorder
and never edited afterwards: admission and batching only read them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_tpu.types import budget as budget_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term
from rl_tpu.types import token_types

SCHEMA_VERSION = 3

CONTEXT, ACTION, SUMMARY, OBSERVATION, RUNTIME = 'C', 'A', 'S', 'O', 'R'
ROLES = (CONTEXT, ACTION, SUMMARY, OBSERVATION, RUNTIME)
TOKEN_TYPES = token_types.NAMES


@dataclasses.dataclass(frozen=True)
class Task:
  """The thing to solve; what success is counted over.

  Attributes:
    task_id: stable key, a hash of the task's content.
    source: where it comes from; batches and reports are split by it.
    family: task family for reports.
    seed: seed handed to the environment's reset.
    payload: the environment's own description (JSON values only).
    tools: descriptions of functions that its prompts show, in place of those
      of the environment; empty leaves the environment's.
  """

  task_id: str
  source: str
  family: str
  seed: int
  payload: dict[str, Any]
  tools: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How the tokens of a segment were drawn (R5)."""

  temperature: float
  top_k: int
  top_p: float
  min_p: float
  stop_ids: tuple[int, ...]
  seed: int
  sampler_build: str
  sampler_dtype: str
  template_hash: str
  tokenizer_hash: str


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
  """One contiguous token sequence the policy was run on (R2, R3).

  Attributes:
    rollout_id: id of the rollout it belongs to.
    segment_index: place in the rollout's time order, from 0.
    global_token_offset: tokens of earlier segments.
    action_offset: action tokens of earlier segments.
    turn_offset: turns that ended in earlier segments.
    end_kind: a cut's name, or the rollout's termination on the last segment.
    cut_cause: why a compaction_cut was made, a `termination.CutCause`; None
      at a resume_cut and at an end.
    prev_state_ref: id of the state the policy continued from; None at the
      start.
    next_state_ref: id of the state it continued with; equals the successor's
      prev_state_ref. None on the last segment.
    summary_hash: hash of the ids of the summary placed in this window (of the
      policy's own as sampled, without its stop); None if none was.
    summary_author: policy, runtime, other_model or None.
    context_length: tokens fed before the first sampled one.
    context_hash: hash of those token ids.
    token: [L] int32 ids as sampled or fed.
    role: [L] one of 'CASOR'.
    turn_id: [L] int32, -1 off the actions; unique in the rollout.
    token_type: [L] index into TOKEN_TYPES.
    reward: [L] float64, 0 where none.
    behaviour_logprob: [L] float32, 0 off the actions.
    behaviour_version: [L] int32 policy version, -1 off the actions.
    sampling: how it was sampled; None where no token was.
    support: what each token could have been drawn from (R5), whole off the
      actions; None where nothing was truncated.
  """

  rollout_id: str
  segment_index: int
  global_token_offset: int
  action_offset: int
  turn_offset: int
  end_kind: str
  prev_state_ref: str | None
  next_state_ref: str | None
  summary_hash: str | None
  summary_author: str | None
  context_length: int
  context_hash: str
  token: np.ndarray
  role: np.ndarray
  turn_id: np.ndarray
  token_type: np.ndarray
  reward: np.ndarray
  behaviour_logprob: np.ndarray
  behaviour_version: np.ndarray
  sampling: Sampling | None = None
  support: support_lib.Support | None = None
  cut_cause: str | None = None

  def __len__(self) -> int:
    return len(self.token)

  @property
  def is_action(self) -> np.ndarray:
    """[L] bool: the policy sampled the token."""
    return (self.role == ACTION) | (self.role == SUMMARY)


@dataclasses.dataclass(frozen=True, eq=False)
class Rollout:
  """One run of one task, from reset to its end (R1).

  Attributes:
    verifier_input_hash: `hashes.json_hash` of the evidence that was scored;
      empty where nothing was.
    score_components: the verifier's own figures, raw, by name.
    seconds: what the rollout waited for, by part: environment, tool,
      verifier, decoding.
    fault_detail: what failed under an infra_failure, in one line.
    fault_trace: the traceback of what failed; None where there is none.
  """

  rollout_id: str
  task_id: str
  source: str
  task_family: str
  group_id: str | None
  termination: term.Termination
  abort_cause: term.AbortCause | None
  fault_cause: term.FaultCause | None
  terminal_reward: float | None
  solved: bool | None
  reward_components: dict[str, list[tuple[int, int, float]]]
  env_name: str
  env_version: str
  env_seed: int
  env_snapshot: str
  permissions_hash: str
  tool_set_hash: str
  verifier_id: str
  verifier_version: str
  verifier_input_hash: str
  budgets: budget_lib.Budget
  num_segments: int
  segments: tuple[Segment, ...]
  t_start: float = 0.0
  t_end: float = 0.0
  t_enqueued: float = 0.0
  t_consumed: float = 0.0
  agent_id: str | None = None
  tenant_id: str | None = None
  discard_reason: term.DiscardReason | None = None
  safety_events: tuple[tuple[str, int, int], ...] = ()
  state_ids: dict[int, str] = dataclasses.field(default_factory=dict)
  counters: dict[str, float] = dataclasses.field(default_factory=dict)
  fault_detail: str | None = None
  fault_trace: str | None = None
  seconds: dict[str, float] = dataclasses.field(default_factory=dict)
  score_components: dict[str, float] = dataclasses.field(default_factory=dict)
  schema_version: int = SCHEMA_VERSION

  @property
  def num_actions(self) -> int:
    """Action tokens stored, over all segments."""
    return sum(int(s.is_action.sum()) for s in self.segments)

  @property
  def num_tokens(self) -> int:
    """Tokens stored, over all segments."""
    return sum(len(s) for s in self.segments)
