"""Do the tests notice a fault? (not part of the test run)

    bash launch/setup.sh test mutation
    .venv/bin/python -m tests.mutation --sample=100

Mechanical mutants of the modules in `targets.py`, and the classic faults of
`faults.py`; at least 90 % of the former and all of the latter have to be
noticed. What cannot be noticed, because nothing changes, is in
`equivalent.json` with the reason.

    .venv/bin/python -m tests.mutation ids

takes minutes: for every id of rl_tpu/ALGORITHMS.md that tests name, a test that
bears the id has to fail under a fault of that rule (`id_faults.py` and the
classic ones).
"""

import argparse
import json
import os
import pathlib
import signal
import sys

from tests import conftest  # Sets devices and cache before jax is imported.

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_CHOICES = ('mutants', 'faults', 'ids', 'all')


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog='tests.mutation',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
      'what', nargs='?', choices=_CHOICES, default='all',
      help='mechanical mutants, classic faults, a fault for every id, or all',
  )
  parser.add_argument(
      '--sample', type=int, metavar='N',
      help='draw N mutants; without it all of them',
  )
  parser.add_argument('--seed', type=int, default=0, help='of the draw')
  parser.add_argument(
      '--module', action='append', metavar='TEXT',
      help='only modules whose path has this in it; may be repeated',
  )
  parser.add_argument('--jobs', type=int, default=1, help='processes at once')
  parser.add_argument(
      '--out', metavar='FILE',
      help='append every result to FILE (JSON lines), and skip what is there',
  )
  parser.add_argument('--list', action='store_true', help='only count mutants')
  return parser.parse_args()


def main() -> int:
  """Runs the check; the exit code is 0 if it passed."""
  arguments = _arguments()
  # So that copies are removed and tests ended, whatever stops the check.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  os.environ['HYPOTHESIS_PROFILE'] = 'mutation'
  conftest.hypothesis.settings.register_profile(
      'mutation',
      derandomize=True,
      database=None,
      # A failure is enough; making it small takes long.
      phases=(
          conftest.hypothesis.Phase.explicit,
          conftest.hypothesis.Phase.generate,
      ),
  )
  try:
    from tests.mutation import check
    from tests.mutation import id_check
  except ModuleNotFoundError as error:
    print(
        f'tests.mutation: {error}. Install what it needs: bash launch/setup.sh'
        ' test mutation',
        file=sys.stderr,
    )
    return 2
  try:
    code = 0
    if arguments.what != 'ids':
      code = check.Check(_ROOT, arguments).run()
    if arguments.what in ('ids', 'all'):
      code = max(code, id_check.IdCheck(_ROOT, arguments).run())
    return code
  except (ValueError, json.JSONDecodeError) as error:
    print(f'tests.mutation: {error}', file=sys.stderr)
    return 2


if __name__ == '__main__':
  sys.exit(main())
