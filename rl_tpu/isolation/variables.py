"""Which environment variables a worker is given: few, and no secrets."""

import os
import re
import sys
from collections.abc import Sequence

_ALWAYS = ('PATH', 'HOME', 'LANG', 'TMPDIR')
_SET_HERE = ('PYTHONPATH', 'OMP_NUM_THREADS', 'JAX_PLATFORMS')
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
_NAMED = 12


def check(names: Sequence[str]) -> None:
  """Refuses names that cannot be passed on.

  Raises:
    ValueError: a name that is none, or one that is not set here.
  """
  for name in names:
    setting = f'isolation.pass_variables = {name!r}'
    if not _NAME.fullmatch(name):
      raise ValueError(f'{setting}: this is no name of a variable.')
    if name not in os.environ:
      raise ValueError(
          f'{setting}: it is not set here; set it, or leave the name out.'
      )


def given(names: Sequence[str] = ()) -> dict[str, str]:
  """The variables of a worker: without its parent's secrets and devices."""
  kept = {n: os.environ[n] for n in (*_ALWAYS, *names) if n in os.environ}
  path = os.pathsep.join(p or os.getcwd() for p in sys.path)
  return {
      'OMP_NUM_THREADS': '1',
      **kept,
      'PYTHONPATH': path,
      'JAX_PLATFORMS': 'cpu',
  }


def left_out(names: Sequence[str] = ()) -> str:
  """A line with the names that a worker is not given; never their values."""
  kept = {*_ALWAYS, *_SET_HERE, *names}
  missing = sorted(n for n in os.environ if n not in kept)
  if not missing:
    return ''
  more = len(missing) - _NAMED
  shown = ', '.join(missing[:_NAMED]) + (f' and {more} more' * (more > 0))
  return (
      f' It was not given these variables: {shown}; name what it needs in'
      ' isolation.pass_variables.'
  )
