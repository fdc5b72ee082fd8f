"""An environment that fails in every way, as its task decides."""

import os
import time
import zlib

from rl_tpu.environments import arithmetic_tools
from rl_tpu.environments import protocol

# What befalls the first step of a task, by the last digit of its hash.
WAYS = (
    'raise', 'none', 'nan', 'unplugged', 'memory', 'exit', 'hang', '', '', '',
)


def way(task_id: str) -> str:
  """How rollouts of a task fail; empty if they do not."""
  return WAYS[zlib.crc32(task_id.encode()) % len(WAYS)]


class FaultyArithmetic(arithmetic_tools.ArithmeticTools):
  """Arithmetic that fails in seven of ten tasks, or in all of them."""

  def __init__(self, problems: int = 3, always: str = ''):
    """Args: problems of a task; the way in which every task fails."""
    super().__init__(problems)
    self._always = always
    self._way = ''

  def reset(self, task, seed):
    self._way = self._always or way(task.task_id)
    return super().reset(task, seed)

  def step(self, action):
    if self._way == 'raise':
      raise KeyError('lost')
    if self._way == 'unplugged':
      raise ConnectionResetError('the socket is gone')
    if self._way == 'memory':
      return bytearray(1 << 40)
    if self._way == 'exit':
      os._exit(3)
    if self._way == 'hang':
      time.sleep(10_000)
    if self._way == 'none':
      return None
    step = super().step(action)
    if self._way == 'nan':
      return protocol.Step(
          step.observation, {**step.rewards, 'tool_valid': float('nan')},
          step.end,
      )
    return step
