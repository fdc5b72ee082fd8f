"""What the tests of launch/ run: launchers, xpk, kubernetes-validate."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Made by tests/run.sh.
VENV = ROOT / '.venv-launch' / 'bin'
QUIET = {'TELEMETRY_ENABLED': 'false', 'DEPENDENCY_AUTO_DOWNLOAD': 'false'}
# For the TPU compiler on a machine without one.
COMPILER = {
    'JAX_PLATFORMS': 'cpu',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


def run(
    *command: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
  """Runs a command in the repository; nothing is asked for on a terminal."""
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
