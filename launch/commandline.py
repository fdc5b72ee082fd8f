"""Command lines of the launchers: flags, one-line mistakes, running a command.

Exit code 2 is a user's mistake, found before anything is started. Otherwise it
is that of the command that was run.
"""

import argparse
import difflib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

MISTAKE = 2


class Parser(argparse.ArgumentParser):
  """Flags of a launcher; a mistake is a ValueError."""

  def __init__(self, module: str, description: str):
    """Args: the module, as in `python -m launch.xpk`, and what it does."""
    super().__init__(
        prog=f'python -m {module}', description=description, allow_abbrev=False
    )

  def error(self, message: str) -> None:
    raise ValueError(message)

  def read(self, words: Sequence[str]) -> argparse.Namespace:
    """The flags of a command line.

    Raises:
      ValueError: an unknown flag, one that is missing or holds a wrong value,
        or a word left over.
    """
    # Before argparse, which names what is missing before what is misspelt.
    for word in words:
      if word == '--':
        break  # What follows is for another program.
      flag = word.split('=', 1)[0]
      if flag.startswith('--') and flag not in self._option_string_actions:
        near = difflib.get_close_matches(
            flag, self._option_string_actions, n=1, cutoff=0.0
        )
        raise ValueError(f'{flag}: no such flag; did you mean {near[0]}?')
    values, left_over = self.parse_known_args(words)
    if left_over:
      raise ValueError(f'{left_over[0]!r} is left over: all words are flags.')
    return values


def main(
    parser: Parser,
    launch: Callable[[argparse.Namespace], int],
    words: Sequence[str],
) -> int:
  """Runs a launcher.

  Args:
    parser: its flags.
    launch: does it with the flags' values and returns the exit code.
    words: of the command line.

  Returns:
    The exit code.
  """
  try:
    return launch(parser.read(words))
  except ValueError as error:
    name = parser.prog.rsplit(' ', 1)[-1]
    print(f'{name}: {" ".join(str(error).split())}', file=sys.stderr)
    return MISTAKE


def run(command: Sequence[str], *, install: str, dry_run: bool) -> int:
  """Prints a command as it could be pasted, and runs it.

  Args:
    command: its words.
    install: how to get the program, for the message when it is not there.
    dry_run: print only.

  Returns:
    The exit code of the command.

  Raises:
    ValueError: the program is not installed.
  """
  print(shlex.join(command), flush=True)
  if dry_run:
    return 0
  if shutil.which(command[0]) is None:
    raise ValueError(f'{command[0]} is not installed: {install}.')
  return subprocess.call(command)
