"""A story that goes on from one line, for models that only write on.

The line opens every window. A long story outgrows a small one: the runtime
then keeps the latest replies, sentences in most settings, and drops what was
before them.
"""

import functools
from typing import Any

from rl_tpu.environments import protocol
from rl_tpu.records import records
from rl_tpu.types import termination as term

NAME = 'stories'
VERSION = '1'


@functools.lru_cache
def _spec(replies: int, kept: int, end: str) -> protocol.EnvironmentSpec:
  return protocol.EnvironmentSpec(
      name=NAME,
      version=f'{VERSION}+replies={replies},kept={kept},end={end}',
      capabilities=frozenset({protocol.RUNTIME_SUMMARY}),
      reward_names=frozenset(),
  )


class Stories:
  """Takes a number of replies, each of which writes the story on.

  The last one is judged. A story that is ended before it is a failure.
  """

  def __init__(self, replies: int = 1, kept: int = 1, end: str = '<s>'):
    """Settings of every run.

    Args:
      replies: parts of a story, as sampling.stop and
        sampling.max_turn_tokens cut it.
      kept: latest replies that survive a compaction.
      end: the text that ends a story.

    Raises:
      ValueError: no replies, none kept, or no text.
    """
    for name, value in (('replies', replies), ('kept', kept)):
      if value < 1:
        raise ValueError(
            f'environment.settings.{name} = {value}: at least 1.'
        )
    if not end:
      raise ValueError(
          "environment.settings.end = '': name the text of the model's end"
          ' token.'
      )
    self._num_replies = replies
    self._num_kept = kept
    self._end = end
    self._noun = ''
    self._line = ''
    self._replies: list[str] = []
    self._is_open = False

  @property
  def spec(self) -> protocol.EnvironmentSpec:
    """Name and version of these settings."""
    return _spec(self._num_replies, self._num_kept, self._end)

  def reset(self, task: records.Task, seed: int) -> protocol.Observation:
    """Starts the task's story; nothing here is random."""
    del seed
    self._noun, self._line = task.payload['noun'], task.payload['line']
    self._replies = []
    self._is_open = True
    return protocol.Observation()

  def instruction(self) -> tuple[protocol.Message, ...]:
    """The line."""
    return (protocol.Message('system', self._line),)

  def step(self, action: protocol.Action) -> protocol.Step:
    """Takes the next part of the story.

    Raises:
      RuntimeError: no run is open.
    """
    if not self._is_open:
      raise RuntimeError('step was called on a run that has ended; reset it.')
    self._replies.append(action.text)
    if len(self._replies) == self._num_replies:
      return self._ended(term.Termination.POLICY_STOP)
    if action.text.endswith(self._end):
      return self._ended(term.Termination.FAILURE)
    return protocol.Step(protocol.Observation())

  def summarise(self) -> str:
    """The latest replies, as they were written."""
    return ''.join(self._replies[-self._num_kept :])

  def evidence(self) -> dict[str, Any]:
    """The noun of the line and the last reply."""
    return {'noun': self._noun, 'ending': self._replies[-1]}

  def close(self) -> None:
    """Ends the run."""
    self._is_open = False

  def _ended(self, kind: term.Termination) -> protocol.Step:
    self._is_open = False
    return protocol.Step(end=protocol.End(kind))
