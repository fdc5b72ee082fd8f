"""An environment that fails in every way, as its task decides."""

import functools
import os
import time
import zlib
from collections.abc import Callable

from rl_tpu.environments import arithmetic_tools
from rl_tpu.environments import protocol

# What befalls the first step of a task, by the last digit of its hash.
WAYS = (
    'raise', 'none', 'nan', 'unplugged', 'memory', 'exit', 'hang', '', '', '',
)


def way(task_id: str) -> str:
  """How rollouts of a task fail; empty if they do not."""
  return WAYS[zlib.crc32(task_id.encode()) % len(WAYS)]


def befall(
    way: str, step: Callable[[], protocol.Step], *, reward: str
) -> protocol.Step | bytearray | None:
  """Fails in a way instead of a step, or in what the step gives.

  Args:
    way: one of WAYS; empty is the step itself.
    step: takes it.
    reward: name of a reward that a step may have.
  """
  if way == 'raise':
    raise KeyError('lost')
  if way == 'unplugged':
    raise ConnectionResetError('the socket is gone')
  if way == 'memory':
    return bytearray(1 << 40)
  if way == 'exit':
    os._exit(3)
  if way == 'hang':
    time.sleep(10_000)
  if way == 'none':
    return None
  made = step()
  if way == 'nan':
    rewards = {**made.rewards, reward: float('nan')}
    return protocol.Step(made.observation, rewards, made.end)
  return made


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
    step = functools.partial(super().step, action)
    return befall(self._way, step, reward='tool_valid')
