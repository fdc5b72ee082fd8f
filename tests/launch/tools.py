"""What the tests of launch/ run: launchers, xpk, kubernetes-validate."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

from rl_tpu.planning import topology

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Made by tests/run.sh.
VENV = ROOT / '.venv-launch' / 'bin'
# For the TPU compiler on a machine without one.
COMPILER = {'JAX_PLATFORMS': 'cpu', **topology.ENVIRONMENT}
EXPERIMENT = 'experiments/ppo.py'
# What every launcher needs.
FLAGS = (
    f'--experiment={EXPERIMENT}',
    '--workdir=gs://bucket/runs/first',
    '--docker-image=us-docker.pkg.dev/p/rl/rl:1',
)
PROGRAM = [
    'python', '-m', 'rl_tpu', 'train', f'--experiment={EXPERIMENT}',
    '--workdir=gs://bucket/runs/first',
]


def run(
    *command: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
  """Runs a command in the repository; nothing can be asked on a terminal."""
  return subprocess.run(
      command,
      env=os.environ | (env or {}),
      cwd=ROOT,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
  )


def python(
    *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
  """Runs the trainer's Python."""
  return run(sys.executable, *words, env=env)


def xpk(*words: str, home: str) -> subprocess.CompletedProcess:
  """Runs xpk, which writes to its home and must not call its makers."""
  env = {
      'HOME': home,
      'PATH': f'{VENV}:{os.environ["PATH"]}',
      'TELEMETRY_ENABLED': 'false',
      'DEPENDENCY_AUTO_DOWNLOAD': 'false',
      # Installed uncompiled: the first run compiles what it imports.
      'PYTHONDONTWRITEBYTECODE': '',
  }
  return run('xpk', *words, env=env)


def environment(container: Mapping[str, object]) -> dict[str, str]:
  """The variables of a container that have a value."""
  return {e['name']: e['value'] for e in container['env'] if 'value' in e}
