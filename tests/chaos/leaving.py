"""A run by the command line, and then a file of what it has left behind.

    python -m tests.chaos.leaving FILE train --experiment=... --workdir=...
"""

import json
import pathlib
import sys
import threading

import psutil

from rl_tpu.cli import main as main_lib


def main() -> int:
  """Runs the command; FILE gets its threads and processes that still live."""
  path, *words = sys.argv[1:]
  code = main_lib.main(words)
  left = {
      'threads': [
          thread.name for thread in threading.enumerate()
          if thread is not threading.main_thread()
      ],
      'processes': [
          ' '.join(process.cmdline()) for process in
          psutil.Process().children(recursive=True)
      ],
  }
  pathlib.Path(path).write_text(json.dumps(left))
  return code


if __name__ == '__main__':
  sys.exit(main())
