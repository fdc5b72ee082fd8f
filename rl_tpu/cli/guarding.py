"""A process of several, under a parent that says why it ended.

JAX aborts a process from another thread when one of its peers is lost, while
the program waits for a device: only a parent can say so in plain words.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_GUARDED = 'RL_TPU_GUARDED'
_FORWARDED = (signal.SIGINT, signal.SIGTERM)
# What runtimes say when the other end of a collective is gone.
_GONE = re.compile(
    r'by peer|Gloo|UNAVAILABLE|DEADLINE_EXCEEDED|coordination service', re.I
)


def is_guarded() -> bool:
  """True in the process that a parent watches."""
  return _GUARDED in os.environ


def run(words: Sequence[str]) -> int:
  """Runs the same command in a child.

  Args:
    words: the command line without the program's name.

  Returns:
    Its exit code; 128 + n where signal n ended it.
  """
  child = subprocess.Popen(
      [sys.executable, '-m', 'rl_tpu', *words],
      env={**os.environ, _GUARDED: str(os.getpid())},
      # A terminal's Ctrl-C comes to this process alone, and is passed on once.
      start_new_session=True,
  )

  def forward(number: int, frame: FrameType | None) -> None:
    del frame
    child.send_signal(number)

  before = {number: signal.signal(number, forward) for number in _FORWARDED}
  try:
    code = child.wait()
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  if code in (-signal.SIGABRT, 128 + signal.SIGABRT):
    why = 'another process of the run was lost'
  elif code < 0:
    why = f'this process was ended by {signal.Signals(-code).name}'
  else:
    return code
  print(
      f'rl_tpu: {why}. Start all processes again with the same --workdir: the'
      ' run goes on from its last checkpoint.',
      file=sys.stderr,
  )
  return code if code > 0 else 128 - code


def is_of_lost_process(error: BaseException) -> bool:
  """True for what a collective raises when another process is gone."""
  return (
      is_guarded()
      and type(error).__name__ == 'JaxRuntimeError'
      and bool(_GONE.search(str(error)))
  )


def follow_parent() -> None:
  """Ends this process with its parent, where the system can do that."""
  if sys.platform != 'linux':
    return
  import ctypes

  pr_set_pdeathsig = 1
  ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
  if os.getppid() != int(os.environ[_GUARDED]):
    os._exit(128 + signal.SIGKILL)  # It has gone already.
