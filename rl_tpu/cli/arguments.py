"""Command-line words: a verb, its flags, and nothing left over."""

import dataclasses
from collections.abc import Mapping, Sequence

from absl import flags

from rl_tpu.config import fields


@dataclasses.dataclass(frozen=True)
class Flag:
  """One flag of a verb.

  Attributes:
    name: as written, without dashes.
    help: one sentence.
    default: text or number; None with `required` has none.
    required: refuse to run without it.
    repeated: may be given several times (`--set`).
    choices: the words allowed; empty is any.
  """

  name: str
  help: str
  default: str | int | None = None
  required: bool = False
  repeated: bool = False
  choices: tuple[str, ...] = ()


class HelpAsked(Exception):
  """The user asked for help; the message is the help."""


def parse(
    verb: str, known: Sequence[Flag], words: Sequence[str]
) -> Mapping[str, object]:
  """Reads the flags of a verb.

  Args:
    verb: for messages.
    known: the verb's flags.
    words: what follows the verb on the command line.

  Returns:
    Flag name -> value.

  Raises:
    ValueError: an unknown or missing flag, or a word left over; the nearest
      flag is named.
    HelpAsked: `--help` is among the words.
  """
  if any(word in ('--help', '-h', '-help') for word in words):
    raise HelpAsked(usage(verb, known))
  values = _definitions(known)
  try:
    left_over = values([verb, *words], known_only=False)[1:]
  except flags.UnrecognizedFlagError as error:
    names = [flag.name for flag in known]
    if '.' in error.flagname and 'set' in names:
      # The value that it names is the whole word.
      word = next(w for w in words if w.lstrip('-').startswith(error.flagname))
      raise ValueError(
          f'{word}: {verb} has no such flag; write --set {word.lstrip("-")}.'
      ) from error
    raise ValueError(
        f'--{error.flagname}: {verb} has no such flag; did you mean'
        f' --{fields.nearest(error.flagname, names)}?'
    ) from error
  except flags.Error as error:
    raise ValueError(str(error).replace('flag ', '')) from error
  if left_over:
    raise ValueError(_left_over(verb, known, left_over[0]))
  parsed = {flag.name: values[flag.name].value for flag in known}
  for flag in known:
    if flag.required and not parsed[flag.name]:
      raise ValueError(f'--{flag.name} is missing: {flag.help}')
  return parsed


def usage(verb: str, known: Sequence[Flag]) -> str:
  """Help of one verb."""
  lines = [f'usage: python -m rl_tpu {verb} [flags]', '']
  for flag in known:
    marks = ' (required)' if flag.required else ''
    marks += ' (may be repeated)' if flag.repeated else ''
    if flag.default not in (None, ''):
      marks += f' (default {flag.default})'
    lines.append(f'  --{flag.name}: {flag.help}{marks}')
  return '\n'.join(lines)


def _definitions(known: Sequence[Flag]) -> flags.FlagValues:
  values = flags.FlagValues()
  for flag in known:
    if flag.repeated:
      flags.DEFINE_multi_string(flag.name, [], flag.help, flag_values=values)
    elif flag.choices:
      flags.DEFINE_enum(
          flag.name, flag.default, flag.choices, flag.help, flag_values=values
      )
    elif isinstance(flag.default, int):
      flags.DEFINE_integer(
          flag.name, flag.default, flag.help, flag_values=values
      )
    else:
      flags.DEFINE_string(
          flag.name, flag.default, flag.help, flag_values=values
      )
  return values


def _left_over(verb: str, known: Sequence[Flag], word: str) -> str:
  names = [flag.name for flag in known]
  name = word.split('=', 1)[0]
  if '=' in word and name not in names and 'set' in names:
    return f'{word!r} is left over: did you mean --set {word}?'
  value = '=' + word.split('=', 1)[1] if '=' in word else ''
  return (
      f'{word!r} is left over: {verb} takes flags only; did you mean'
      f' --{fields.nearest(name, names)}{value}?'
  )
