"""One question, one reply, and the verifier has the word.

Serves tasks of rows (`rl_tpu.tasks.rows`): payload `messages` and `answer`.
"""

from typing import Any

from rl_tpu.environments import protocol
from rl_tpu.records import records
from rl_tpu.text import hashing
from rl_tpu.types import termination as term

NAME = 'single_turn'
VERSION = '1'


class SingleTurn:
  """Shows a task's messages and ends with the first reply.

  A reply that was cut by its length limit is a truncation, not an answer.
  """

  def __init__(self, instruction: str = ''):
    """Args: instruction: system message before every task; empty is none."""
    self._instruction = instruction
    self._spec = protocol.EnvironmentSpec(
        name=NAME,
        version=f'{VERSION}+instruction={hashing.of_text(instruction)}',
        permissions_hash=hashing.of_json({'files': [], 'hosts': []}),
        tool_set_hash=hashing.of_json({}),
        reward_names=frozenset(),
    )
    self._answer = ''
    self._reply = ''

  @property
  def spec(self) -> protocol.EnvironmentSpec:
    """Name and version of these settings."""
    return self._spec

  def reset(self, task: records.Task, seed: int) -> protocol.Observation:
    """Shows the task; nothing here is random.

    Raises:
      ValueError: the task has no messages, or a system message beside the
        environment's instruction.
    """
    del seed
    given = task.payload.get('messages')
    if not given or 'answer' not in task.payload:
      raise ValueError(
          f'task {task.task_id}: {NAME} needs `messages` and `answer` in its'
          ' payload, as rl_tpu.tasks.rows:RowTasks gives them.'
      )
    messages = tuple(map(protocol.Message.of, given))
    if self._instruction and messages[0].role == 'system':
      raise ValueError(
          f'task {task.task_id} has a system message of its own; leave'
          ' environment.settings.instruction empty.'
      )
    self._answer, self._reply = task.payload['answer'], ''
    return protocol.Observation(prompt=messages)

  def instruction(self) -> tuple[protocol.Message, ...]:
    """The system message, if there is one."""
    if not self._instruction:
      return ()
    return (protocol.Message('system', self._instruction),)

  def step(self, action: protocol.Action) -> protocol.Step:
    """Takes the reply and ends the run."""
    self._reply = action.text
    if action.finish_reason == 'stop':
      kind = term.Termination.POLICY_STOP
    else:
      kind = term.Termination.BUDGET_TRUNCATION
    return protocol.Step(end=protocol.End(kind))

  def evidence(self) -> dict[str, Any]:
    """The right answer and what the policy wrote (K02)."""
    return {'answer': self._answer, 'reply': self._reply}

  def close(self) -> None:
    """Holds nothing."""
