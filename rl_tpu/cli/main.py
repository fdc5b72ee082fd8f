"""The command line: picks the verb and turns errors into exit codes.

0: the work is done. 2: a user's mistake, found before any work, one line.
1: an internal error, with its traceback; data with faults (check-data); or a
run that a rule of its settings has stopped, one line.
42: the devices did not answer; to be started again.
128 + n: ended by signal n; 134 where another process of the run was lost.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence

from absl import logging

from rl_tpu.cli import arguments
from rl_tpu.cli import guarding
from rl_tpu.cli import verbs
from rl_tpu.config import fields
from rl_tpu.types import stops

DONE, INTERNAL, MISTAKE, INTERRUPTED = 0, 1, 2, 130
# Also what JAX itself ends a process with that has lost another.
LOST = 128 + signal.SIGABRT

# Process 0 of several leaves so late: the others find the same mistake, and are
# to say so before they are aborted because the service that joins them, which
# is in process 0, is gone. That another one has left is noticed much later.
_LAST_WORDS_S = 5.0
_LONGEST = 2000  # Letters of a line; what a file holds may be longer.
# What a user's mistake raises while a run is being prepared.
_MISTAKES = (
    ValueError,
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)


def run() -> None:
  """Entry point of `rl-tpu` and of `python -m rl_tpu`."""
  words = sys.argv[1:]
  if not os.environ.get('RL_TPU_PROCESSES'):
    sys.exit(main(words))
  if not guarding.is_guarded():
    sys.exit(guarding.run(words))
  guarding.follow_parent()
  code = main(words)
  if code in (INTERNAL, MISTAKE, LOST):
    # Not through JAX's own exit, which waits for the other processes: they
    # wait for this one.
    if code == MISTAKE and os.environ.get('RL_TPU_PROCESS', '0') == '0':
      time.sleep(_LAST_WORDS_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


def main(words: Sequence[str]) -> int:
  """Runs one command.

  Args:
    words: the command line without the program's name.

  Returns:
    The exit code.
  """
  logging.use_absl_handler()
  # Our own progress goes to the console; what libraries note at INFO (a dozen
  # lines a checkpoint) does not.
  logging.set_verbosity(logging.WARNING)
  phase = verbs.Phase()
  try:
    verb = _verb(words)
    values = arguments.parse(verb.name, verb.flags, words[1:])
    _check_place(verb, values)
    return verb.run(values, phase)
  except arguments.HelpAsked as asked:
    print(asked)
    return DONE
  except KeyboardInterrupt:
    print('interrupted.', file=sys.stderr)
    return INTERRUPTED
  except BrokenPipeError:
    # The reader of our output has gone (`| head`). What is still buffered must
    # not fail again when the interpreter flushes it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE
  except stops.RunStopped as stopped:
    print(f'rl_tpu: {one_line(stopped)}', file=sys.stderr)
    return INTERNAL
  except Exception as error:  # The outermost frame: it becomes an exit code.
    if isinstance(error, OSError) and error.errno in stops.UNWRITABLE:
      print(f'rl_tpu: {one_line(error)}', file=sys.stderr)
      return INTERNAL
    if phase.begun or not is_mistake(error):
      traceback.print_exc()
      return LOST if guarding.is_of_lost_process(error) else INTERNAL
    print(f'rl_tpu: {one_line(error)}', file=sys.stderr)
    return MISTAKE


def is_mistake(error: Exception) -> bool:
  """True for what a user can cure: settings, files, packages not installed."""
  if isinstance(error, ModuleNotFoundError):
    return not (error.name or '').startswith('rl_tpu')
  if isinstance(error, OSError) and error.filename is not None:
    return True  # Links in a circle, names that are too long.
  return isinstance(error, _MISTAKES)


def one_line(error: Exception) -> str:
  """The message of an error, in one line of letters that a terminal shows."""
  text = str(error)
  if isinstance(error, OSError) and error.filename is not None:
    text = f'{error.filename}: {error.strerror}.'
  text = ' '.join(text.split())
  if len(text) > _LONGEST:
    text = f'{text[:_LONGEST]}...'
  # Names of a stranger's file may hold what steers a terminal.
  return ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _verb(words: Sequence[str]) -> verbs.Verb:
  names = [verb.name for verb in verbs.VERBS]
  if not words or words[0] in ('--help', '-h', '-help', 'help'):
    overview = _overview()
    if words:
      raise arguments.HelpAsked(overview)
    raise ValueError(f'name a verb: one of {", ".join(names)}.')
  for verb in verbs.VERBS:
    if verb.name == words[0]:
      return verb
  if words[0].startswith('-'):
    raise ValueError(
        f'{words[0]}: the verb comes first: python -m rl_tpu VERB [flags], VERB'
        f' one of {", ".join(names)}.'
    )
  raise ValueError(
      f'{words[0]!r} is no verb; did you mean'
      f' {fields.nearest(words[0], names)}? (verbs: {", ".join(names)})'
  )


def _check_place(verb: verbs.Verb, values: Mapping[str, object]) -> None:
  """Refuses gs:// and several processes where the verb has no use for them."""
  if guarding.is_guarded() and verb.name != 'train':
    raise ValueError(
        f'RL_TPU_PROCESSES={os.environ["RL_TPU_PROCESSES"]}: {verb.name} runs'
        ' in one process; unset it.'
    )
  workdir = str(values.get('workdir', ''))
  if workdir.startswith('gs://') and verb.name != 'train':
    raise ValueError(
        f'--workdir={workdir}: {verb.name} needs a folder of this machine; copy'
        f' it: gcloud storage cp --recursive {workdir} runs/.'
    )


def _overview() -> str:
  lines = ['usage: python -m rl_tpu VERB [flags]', '']
  lines += [f'  {verb.name}: {verb.help}' for verb in verbs.VERBS]
  lines += ['', 'python -m rl_tpu VERB --help shows the flags of a verb.']
  return '\n'.join(lines)
