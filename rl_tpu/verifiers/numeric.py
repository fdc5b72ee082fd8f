"""Compares a final number, as GSM8K's answers end with one: `#### 42`."""

import fractions
import re
from collections.abc import Mapping
from typing import Any

from rl_tpu.verifiers import protocol

MARK = '####'

_THINK, _THINK_END = '<think>', '</think>'
# What looks like a number and is no part of a word, such as the unit m2.
_CHUNK = re.compile(
    r'(?<![\w.,/])[-+\u2212$€£¥]*[\d.,/]*\d[\d.,/]*(?:[eE][-+]?\d[\d.,/]*)?',
    re.ASCII,
)
_NUMBER = re.compile(
    r'([-+]?)((?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?)(?:[eE]([-+]?\d+))?'
    r'(?:/(\d+))?',
    re.ASCII,
)
_SIGNS = str.maketrans({'\u2212': '-', '$': '', '€': '', '£': '', '¥': ''})
# A longer one is no answer: the policy may write thousands of digits.
_MAX_LENGTH = 40
# Those of a double: a larger power would be a number of gigabytes.
_EXPONENTS = range(-324, 309)


class NumericAnswer:
  """1 where the reply's final number is the answer's, else 0.

  The number stands on the line after the last ####: one number, with or
  without thousands commas, a sign of currency or a unit. Two numbers there are
  no answer, so that guessing several is not rewarded.
  """

  verifier_id = 'numeric_answer'
  deterministic = True

  def __init__(self, last_number: bool = False):
    """Args: last_number: a reply without #### is read by its last number."""
    self._last_number = last_number

  @property
  def version(self) -> str:
    """Of the code, settings included."""
    return f'2+last_number={self._last_number}'

  def check_payload(self, payload: Mapping[str, Any]) -> None:
    """Refuses a task whose answer no reply could be compared with.

    Raises:
      ValueError: its answer is not one number.
    """
    if 'answer' in payload:
      _wanted(payload['answer'])

  def score(self, evidence: Mapping[str, Any]) -> protocol.Score:
    """Scores `reply` against `answer`.

    Raises:
      ValueError: the right answer holds no number.
    """
    wanted = _wanted(evidence['answer'])
    given = self._given(evidence['reply'])
    right = float(given == wanted)
    return protocol.Score(
        value=right,
        solved=bool(right),
        components={'answered': float(given is not None), 'right': right},
    )

  def _given(self, reply: str) -> fractions.Fraction | None:
    # What was thought is not said, and a thought without an end says nothing.
    said = reply.rpartition(_THINK_END)[2].partition(_THINK)[0]
    _, mark, final = said.rpartition(MARK)
    if mark:
      return number_in(final.strip().partition('\n')[0])
    found = numbers_in(said) if self._last_number else []
    return found[-1] if found else None


def _wanted(answer: Any) -> fractions.Fraction:
  if not isinstance(answer, str):
    raise ValueError(f'the answer is a {type(answer).__name__} and no text.')
  _, mark, final = answer.rpartition(MARK)
  wanted = number_in(final if mark else answer)
  if wanted is None:
    raise ValueError(f'the answer {answer[-80:]!r} is not one number.')
  return wanted


def number_in(text: str) -> fractions.Fraction | None:
  """The only number in a text; None where there is none or more than one.

  `$1,200.50 a month` is 1200.5, `3/4` three quarters, `1e3` 1000, and
  `3 or 4` none.
  """
  found = numbers_in(text)
  return found[0] if len(found) == 1 else None


def numbers_in(text: str) -> list[fractions.Fraction | None]:
  """Every number in a text, in order; None for one that does not read."""
  return [_value(chunk) for chunk in _CHUNK.findall(text)]


def _value(chunk: str) -> fractions.Fraction | None:
  text = chunk.translate(_SIGNS).rstrip('.,/')
  match = _NUMBER.fullmatch(text)
  if not match or not match[2] or len(text) > _MAX_LENGTH:
    return None
  sign, number, exponent, divisor = match.groups()
  power = int(exponent or 0)
  if power not in _EXPONENTS:
    return None
  value = fractions.Fraction(number.replace(',', ''))
  value *= fractions.Fraction(10) ** power
  below = int(divisor or 1)
  if not below:
    return None
  return (-value if sign == '-' else value) / below
