"""This project's benchmarks and another trainer's, one after the other.

  python -m tests.bench.peer --python=VENV/bin/python --script=FILE

FILE is a program that measures the same work in the other trainer and prints
one JSON object as its last line, with the keys of `PAIRS`; it runs in an
environment of its own. Prints one JSON line: both sets of figures, and ratios
that are above 1 where this project is better.
"""

import argparse
import json
import subprocess
import sys
import time

# Ratio: (our key, the peer's key, whether a larger figure is better).
PAIRS = {
    'rollout_equal': ('rollout_equal_tok_s', 'rollout_temp1_tok_s', True),
    'update': ('update_s', 'ppo_1dev_update_s', False),
    'scoring': ('scoring_s', 'ppo_1dev_score_s', False),
    'gae': ('gae_64x4096_ms', 'gae_64x4096_ms', False),
    'update_memory': ('update_peak_gib', 'ppo_1dev_peak_rss_gib', False),
}


def last_json(command: list[str]) -> dict:
  """Runs a program; its last line as an object."""
  done = subprocess.run(
      command, stdout=subprocess.PIPE, text=True, check=True
  )
  return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
  """Runs both and prints the line."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--python', required=True)
  parser.add_argument('--script', required=True)
  options = parser.parse_args()
  began = time.strftime('%Y-%m-%d %H:%M')
  ours = last_json([sys.executable, '-m', 'tests.bench'])
  peer = last_json(
      [options.python, options.script, '--parts', 'rollout,gae,update1']
  )
  ratios = {}
  for name, (mine, theirs, larger) in PAIRS.items():
    if mine in ours and theirs in peer:
      a, b = ours[mine], peer[theirs]
      ratios[name] = round(a / b if larger else b / a, 2)
  print(
      json.dumps(
          {'began': began, 'ours': ours, 'peer': peer, 'ratios': ratios}
      )
  )


if __name__ == '__main__':
  main()
