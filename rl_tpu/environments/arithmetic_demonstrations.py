"""A scripted policy for the arithmetic environment, wrong on purpose.

It skips the calculator in half of the problems and guesses then, so a policy
that imitates it is wrong at its mode: something is left to learn. The other
faults are slips in copying.
"""

import dataclasses
import weakref

import numpy as np

from rl_tpu.environments import arithmetic_tools

_DIGITS = '0123456789'
_OPERATORS = '+-*'


@dataclasses.dataclass
class _Notes:
  """What the script remembers of one run: its window, as far as it matters."""

  run: int
  answers: list[str]


class ScriptedPolicy:
  """Replies to the environment from its true state, with random faults.

  It remembers answers as an agent with a window does: a fault in a summary
  stays, because only the summary reaches the next window.
  """

  def __init__(
      self,
      skip: float = 0.5,
      skip_right: float = 0.2,
      corrupt_call: float = 0.03,
      corrupt_answer: float = 0.02,
      corrupt_summary: float = 0.06,
      corrupt_report: float = 0.02,
  ):
    """Probabilities of the faults.

    Args:
      skip: a problem is answered without the calculator.
      skip_right: an answer without it is right all the same.
      corrupt_call: a digit or operator of the call is changed.
      corrupt_answer: a digit of the answer is changed.
      corrupt_summary: an entry of the summary is dropped or changed.
      corrupt_report: an entry of the report is dropped or changed.

    Raises:
      ValueError: one that is no probability.
    """
    faults = {
        'skip': skip,
        'skip_right': skip_right,
        'corrupt_call': corrupt_call,
        'corrupt_answer': corrupt_answer,
        'corrupt_summary': corrupt_summary,
        'corrupt_report': corrupt_report,
    }
    for name, chance in faults.items():
      if not 0.0 <= chance <= 1.0:
        raise ValueError(
            f'sft.settings.{name} = {chance}: a probability lies in [0, 1].'
        )
    self._chance = faults
    self._notes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

  def reply(
      self,
      environment: arithmetic_tools.ArithmeticTools,
      kind: str,
      rng: np.random.Generator,
  ) -> str:
    """One line, newline included.

    Args:
      environment: in the state that is to be answered.
      kind: turn, or summary where the runtime asks for one.
      rng: draws the faults.

    Raises:
      ValueError: another kind.
    """
    notes = self._notes_of(environment)
    if kind == 'summary':
      if self._hits('corrupt_summary', rng):
        notes.answers = corrupt_list(notes.answers, rng)
      text = ' '.join(notes.answers) or arithmetic_tools.NO_ANSWERS
      return f' {text}\n'
    if kind != 'turn':
      raise ValueError(f"kind = {kind!r}: it is 'turn' or 'summary'.")
    progress = environment.progress
    if not progress.expression:
      return self._report(notes, rng)
    return self._work(progress, notes, rng)

  def _notes_of(
      self, environment: arithmetic_tools.ArithmeticTools
  ) -> _Notes:
    notes = self._notes.get(environment)
    if notes is None or notes.run != environment.runs:
      notes = self._notes[environment] = _Notes(environment.runs, [])
    return notes

  def _hits(self, name: str, rng: np.random.Generator) -> bool:
    return bool(rng.random() < self._chance[name])

  def _work(
      self,
      progress: arithmetic_tools.Progress,
      notes: _Notes,
      rng: np.random.Generator,
  ) -> str:
    is_fresh = progress.calls == 0
    if is_fresh and not self._hits('skip', rng):
      expression = progress.expression
      if self._hits('corrupt_call', rng):
        expression = corrupt_expression(expression, rng)
      return f' calc({expression})\n'
    if is_fresh or progress.result == 'err':
      answer = progress.answer
      if not self._hits('skip_right', rng):
        answer = _near(answer, rng)
    else:
      answer = progress.result
      if self._hits('corrupt_answer', rng):
        answer = corrupt_number(answer, rng)
    notes.answers.append(answer)
    return f' answer {answer}\n'

  def _report(self, notes: _Notes, rng: np.random.Generator) -> str:
    answers = notes.answers
    if self._hits('corrupt_report', rng):
      answers = corrupt_list(answers, rng)
    # An empty report would be malformed; a guess is merely wrong.
    return f' {" ".join(answers) or "0"}\n'


def _near(answer: str, rng: np.random.Generator) -> str:
  """A guess that misses by 1, 2, 3 or 10."""
  miss = int(rng.choice((1, 2, 3, 10))) * int(rng.choice((-1, 1)))
  return str(int(answer) + miss)


def corrupt_number(number: str, rng: np.random.Generator) -> str:
  """A number with one digit changed, in canonical spelling."""
  places = [i for i, c in enumerate(number) if c in _DIGITS]
  place = int(rng.choice(places))
  digits = _DIGITS.replace(number[place], '')
  if len(places) > 1 and place == places[0]:
    digits = digits.replace('0', '')
  elif number.startswith('-') and len(places) == 1:
    digits = digits.replace('0', '')
  changed = digits[int(rng.integers(len(digits)))]
  return number[:place] + changed + number[place + 1 :]


def corrupt_expression(expression: str, rng: np.random.Generator) -> str:
  """An expression with one digit or operator changed, valid all the same."""
  parts = expression.split(' ')
  place = int(rng.integers(len(parts)))
  if parts[place] in _OPERATORS:
    others = _OPERATORS.replace(parts[place], '')
    parts[place] = others[int(rng.integers(len(others)))]
  else:
    parts[place] = corrupt_number(parts[place], rng)
  return ' '.join(parts)


def corrupt_list(answers: list[str], rng: np.random.Generator) -> list[str]:
  """Answers with one entry dropped or one digit changed."""
  if not answers:
    return []
  place = int(rng.integers(len(answers)))
  changed = list(answers)
  if rng.random() < 0.5:
    del changed[place]
  else:
    changed[place] = corrupt_number(changed[place], rng)
  return changed
