"""Flags of the launchers that start a job on Google Kubernetes Engine."""

import argparse
import re

from launch import commandline

# A run that was stopped saves and exits with 128 + signal; 42 asks for it too.
# Any other code is a fault that a restart would only repeat.
_LAST_CODE = 255


def add_restart_flags(parser: commandline.Parser) -> None:
  """Adds what happens when a host is taken away."""
  add = parser.add_argument
  add(
      '--max-restarts',
      type=int,
      default=100,
      help='times that the job is started again (default 100)',
  )
  add(
      '--restart-on-exit-codes',
      default='',
      metavar='CODE,CODE',
      help='that restart as well as 42 and 127 to 255 (default none)',
  )
  add_grace_flag(parser)


def add_grace_flag(parser: commandline.Parser) -> None:
  """Adds the time that a stopped run has for its save."""
  parser.add_argument(
      '--grace-seconds',
      type=int,
      default=600,
      help=(
          'from the notice to the end of a host, where the cluster grants it;'
          ' a spot machine has 30 (default 600)'
      ),
  )


def restart_codes(values: argparse.Namespace) -> list[int]:
  """The further exit codes that restart.

  Raises:
    ValueError: no such code, or 2.
  """
  text = values.restart_on_exit_codes
  if not re.fullmatch(r'(\d+(,\d+)*)?', text):
    raise ValueError(
        f'--restart-on-exit-codes={text}: write numbers, such as 1,3.'
    )
  codes = [int(code) for code in text.split(',') if code]
  for code in codes:
    if not 0 < code <= _LAST_CODE or code == commandline.MISTAKE:
      raise ValueError(
          f'--restart-on-exit-codes={text}: {code} is not a fault that a'
          ' restart can cure (2 is a mistake in the settings).'
      )
  return codes
