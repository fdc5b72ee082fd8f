"""What an environment is: the contract between a session and a world.

A user's environment is any class with these methods, named by import path
(`module:Class`); it does not inherit from anything here.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rl_tpu.records import records
from rl_tpu.text import chat
from rl_tpu.text import hashing
from rl_tpu.text import tool_calls
from rl_tpu.text import tool_formats
from rl_tpu.types import termination as term

Message = chat.Message
ToolCall = tool_calls.ToolCall

# The runtime can have summaries written by the environment.
RUNTIME_SUMMARY = 'runtime_summary'
# `state_id` names the state itself, so step groups may use it (E6).
STATE_ID = 'state_id'
READS_SUMMARY = 'reads_summary'
# `tenant_id` names the isolated account, container or database (E11).
TENANT = 'tenant'


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """What is known of an environment before it runs.

  Attributes:
    name: goes into every rollout.
    version: changes whenever behaviour may; settings included.
    blocking: a call may wait (network, processes): it needs a worker process.
    capabilities: optional parts that exist, such as RUNTIME_SUMMARY.
    permissions_hash: stands for what the agent may reach (E7).
    tool_set_hash: stands for the tools it is given (E7).
    reward_names: components that `step` may give, so that a weight for
      another name is refused at start-up; None says nothing.
    parse_reply: (start, stop, token type) of the characters of a reply, for
      figures and coefficients by type (L19); None counts them as text.
    tool_format: how the model writes tool calls: qwen, llama3 or glm. Replies
      are then parsed for it, and actions carry their calls; empty is off.
    tools: descriptions of functions (JSON schema) that the chat template shows
      the model, unless the task brings its own.

  Raises:
    ValueError: no such format, or a parser beside one.
  """

  name: str
  version: str
  blocking: bool = False
  capabilities: frozenset[str] = frozenset()
  permissions_hash: str = ''
  tool_set_hash: str = ''
  reward_names: frozenset[str] | None = None
  parse_reply: Callable[[str], Sequence[tuple[int, int, str]]] | None = None
  tool_format: str = ''
  tools: tuple[Mapping[str, Any], ...] = ()

  def __post_init__(self):
    if self.tool_format:
      tool_formats.check_name(self.tool_format)
      if self.parse_reply is not None:
        raise ValueError(
            f'{self.name}: tool_format = {self.tool_format!r} has a parser of'
            ' its own; give parse_reply or tool_format.'
        )


def tools_of(
    spec: EnvironmentSpec, task: records.Task
) -> tuple[Mapping[str, Any], ...]:
  """Descriptions of the functions that a task's prompts show."""
  return task.tools or spec.tools


def tool_set_of(spec: EnvironmentSpec, task: records.Task) -> str:
  """Stands for the tools that a task's rollouts are given (E7)."""
  if not task.tools:
    return spec.tool_set_hash
  return hashing.of_json([spec.tool_set_hash, list(task.tools)])


@dataclasses.dataclass(frozen=True)
class Observation:
  """What the agent sees after a reset or a step.

  Attributes:
    messages: what has just happened; stays in the window where it happened.
    prompt: what the agent has to answer next. It is kept apart because a cut
      carries it to the new window. Empty: the last prompt is still open.
  """

  messages: tuple[Message, ...] = ()
  prompt: tuple[Message, ...] = ()


@dataclasses.dataclass(frozen=True)
class End:
  """The end of a run, named by the environment (T1)."""

  kind: term.Termination
  abort_cause: term.AbortCause | None = None


@dataclasses.dataclass(frozen=True)
class Action:
  """One reply of the policy.

  Attributes:
    text: as sampled, its stop token included.
    finish_reason: of the completion: stop, length, context or abort.
    calls: tool calls of the reply, malformed ones among them, where the
      environment names a `tool_format`.
  """

  text: str
  finish_reason: str = 'stop'
  calls: tuple[ToolCall, ...] = ()


@dataclasses.dataclass(frozen=True)
class Step:
  """The answer to one action.

  Attributes:
    observation: None where the end leaves nothing to show.
    rewards: raw process rewards by name, earned by this action.
    end: None while the run goes on.
    counters: amounts that are summed over the rollout, such as tool_calls.
  """

  observation: Observation | None = None
  rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
  end: End | None = None
  counters: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Environment(Protocol):
  """One world at a time; `reset` starts another."""

  @property
  def spec(self) -> EnvironmentSpec:
    """Known before any reset."""

  def reset(self, task: records.Task, seed: int) -> Observation:
    """Starts the task; equal task and seed start equal runs."""

  def instruction(self) -> tuple[Message, ...]:
    """Opens every window; may show how far the run has come."""

  def step(self, action: Action) -> Step:
    """Applies one reply."""

  def summarise(self) -> str:
    """A summary written by the runtime (capability RUNTIME_SUMMARY)."""

  def remember(self, summary: str) -> None:
    """Hears what the next window will know (capability READS_SUMMARY).

    Called at a compaction before `instruction`, with the summary as it is
    carried over.
    """

  def evidence(self) -> dict[str, Any]:
    """JSON values for the verifier.

    Only what was observed of the world and of the final report: nothing that
    the policy can write beyond its answers.
    """

  def state_id(self) -> str:
    """Stands for the state that the next action is taken in (E6).

    Called with the capability STATE_ID only. Equal texts are equal states:
    what can happen next, and what it is worth, is the same.
    """

  def tenant_id(self) -> str | None:
    """What the run acts in (E11, capability TENANT); None shares nothing.

    Called after `reset`. Two runs in one tenant at once are not compared,
    because one can change what the other sees.
    """

  def close(self) -> None:
    """Gives resources back; the environment is not used again."""
