"""Several processes of CPU devices on this machine, as the hosts of a pod are.

    python -m launch.processes --processes=2 --devices=2 -- \
        train --experiment=experiments/x.py --workdir=runs/x

Each process runs `python -m rl_tpu` with the words behind `--`; the lines that
they print bear their number. What several hosts do without Pathways is tried
this way before a pod is paid for.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from launch import commandline


def parser() -> commandline.Parser:
  """The flags."""
  made = commandline.Parser(
      'launch.processes',
      'Runs rl_tpu as several processes of CPU devices on this machine.',
  )
  add = made.add_argument
  add('--processes', type=int, default=2, help='how many (default 2)')
  add('--devices', type=int, default=4, help='CPU devices of each (default 4)')
  add('--dry-run', action='store_true', help='print the commands only')
  add('words', nargs='+', help='verb and flags of rl_tpu, behind --')
  return made


def launch(values: argparse.Namespace) -> int:
  """Runs all processes to their ends.

  Returns:
    0 where all of them did their work; else the code of the first that ended
    with another, which the others follow.

  Raises:
    ValueError: a count below 1.
  """
  for name in ('processes', 'devices'):
    if getattr(values, name) < 1:
      raise ValueError(f'--{name}={getattr(values, name)}: at least 1.')
  if values.dry_run:
    address = free_address()
    for index in range(values.processes):
      variables = environment(
          values.processes, index, values.devices, address
      )
      print(
          ' '.join(f'{name}={value}' for name, value in variables.items()),
          shlex.join(['python', '-m', 'rl_tpu', *values.words]),
      )
    return 0
  started = start(values.words, values.processes, values.devices)
  readers = [
      threading.Thread(target=_show, args=(index, process))
      for index, process in enumerate(started)
  ]
  forward = lambda number, _: [p.send_signal(number) for p in started]
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, forward)
  for reader in readers:
    reader.start()
  codes = [process.wait() for process in started]
  for reader in readers:
    reader.join()
  # An abort only says that another one was lost.
  failed = sorted(filter(None, codes), key=lambda code: code == 134)
  return failed[0] if failed else 0


def start(
    words: Sequence[str],
    processes: int,
    devices: int,
    *,
    module: str = 'rl_tpu',
    cwd: str | os.PathLike[str] | None = None,
) -> list[subprocess.Popen]:
  """Starts the processes; what each prints goes to its `stdout`.

  Args:
    words: verb and flags.
    processes: how many.
    devices: CPU devices of each.
    module: what `python -m` runs.
    cwd: where; None is the present folder.
  """
  address = free_address()
  return [
      subprocess.Popen(
          [sys.executable, '-m', module, *words],
          env=os.environ | environment(processes, index, devices, address),
          cwd=cwd,
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
      )
      for index in range(processes)
  ]


def environment(
    processes: int, index: int, devices: int, address: str
) -> dict[str, str]:
  """Variables of one process; `address` is that of process 0."""
  return {
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
      'RL_TPU_PROCESSES': str(processes),
      'RL_TPU_PROCESS': str(index),
      'RL_TPU_COORDINATOR': address,
  }


def free_address() -> str:
  """A port of this machine that nobody listens to."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{free.getsockname()[1]}'


def _show(index: int, process: subprocess.Popen) -> None:
  for line in process.stdout:
    print(f'[{index}] {line}', end='', flush=True)


if __name__ == '__main__':
  sys.exit(commandline.main(parser(), launch, sys.argv[1:]))
