"""Benchmarks on one CPU device: `python -m tests.bench [part ...]`.

Prints one JSON line. Every timing is the best of several runs, the median
beside it. The matrix rate is measured in the same minute as the update and
the scoring passes, so that their share of it means something on a machine
whose clock and neighbours change.

Parts: rollout, update, scoring, gae (default: these); estimator (packing and
recursion over up to 10 million tokens), support (recorded sampling supports),
memory (of the update, by part), folder (a gigabyte of model in and out). Each
runs in a process of its own, so that peak memory is that part's.
"""

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

DEFAULT = ('rollout', 'update', 'scoring', 'gae')
# Parts by their module.
PARTS = dict.fromkeys(DEFAULT, 'parts') | {
    'estimator': 'costs',
    'support': 'costs',
    'memory': 'costs',
    'folder': 'folder',
}


def timed(call, *, warmup: int, repeat: int) -> dict[str, float]:
  """Best and median wall seconds of a call."""
  for _ in range(warmup):
    call()
  seconds = []
  for _ in range(repeat):
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
  return {'best': min(seconds), 'median': statistics.median(seconds)}


def run_part(name: str) -> dict[str, float]:
  """One part in this process."""
  module = importlib.import_module(f'tests.bench.{PARTS[name]}')
  figures = getattr(module, name)()
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  figures[f'{name}_peak_gib'] = round(peak, 2)
  return figures


def main() -> None:
  """Runs the parts named on the command line, or all of them."""
  arguments = sys.argv[1:]
  if arguments[:1] == ['--part']:
    print(json.dumps(run_part(arguments[1])))
    return
  unknown = [a for a in arguments if a not in PARTS]
  if unknown:
    sys.exit(f'tests.bench: no part {unknown[0]}; parts: {", ".join(PARTS)}.')
  result = {'bench': 'rl_tpu', 'cores': os.cpu_count()}
  environment = dict(
      os.environ,
      JAX_PLATFORMS='cpu',
      XLA_FLAGS='--xla_force_host_platform_device_count=1',
      # As launch/local.sh has it: XLA's temporaries stay mapped.
      MALLOC_ARENA_MAX='1',
      MALLOC_MMAP_MAX_='0',
      MALLOC_TRIM_THRESHOLD_='4000000000',
  )
  for name in arguments or DEFAULT:
    done = subprocess.run(
        [sys.executable, '-m', 'tests.bench', '--part', name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result |= json.loads(done.stdout.strip().splitlines()[-1])
  result['load_average'] = round(os.getloadavg()[0], 2)
  print(json.dumps(result))


if __name__ == '__main__':
  main()
