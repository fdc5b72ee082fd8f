"""This machine and its processes, as another process of it can tell them."""

import os
import pathlib
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

ALIVE, DEAD, UNKNOWN = 'alive', 'dead', 'unknown'


def clock() -> float:
  """Seconds that go on while the machine sleeps, and never back."""
  kind = getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC)
  return time.clock_gettime(kind)


def here() -> dict[str, Any]:
  """This process, and the machine that its id means something on."""
  return {
      'host': socket.gethostname(),
      'machine': _machine(),
      'pid': os.getpid(),
      'start': _start(os.getpid()),
  }


def state_of(process: Mapping[str, Any]) -> str:
  """Whether a process that `here` described is alive.

  Args:
    process: what `here` gave in that process, perhaps damaged.

  Returns:
    UNKNOWN where that was another machine, or this system does not tell.
  """
  machine, pid = process.get('machine'), process.get('pid')
  if not machine or machine != _machine() or not isinstance(pid, int):
    return UNKNOWN
  # The start tells it from a later process that was given the same id.
  is_it = bool(process.get('start')) and _start(pid) == process['start']
  return ALIVE if is_it else DEAD


def _machine() -> str:
  """This boot and this space of process ids; '' where that is not known.

  Containers of one machine share the boot and not the ids.
  """
  if sys.platform != 'linux':
    return ''
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text('ascii')
  return f'{boot.strip()} {os.readlink("/proc/self/ns/pid")}'


def _start(pid: int) -> str:
  """When a process began, in ticks since the boot; '' for none or a zombie."""
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text('utf-8', 'replace')
  except (FileNotFoundError, ProcessLookupError):
    return ''
  # The name, in brackets, may hold anything.
  state, *fields = stat.rpartition(')')[2].split()
  # A zombie is dead and waits for its parent to be told.
  return '' if state in ('Z', 'X', 'x') else fields[18]
