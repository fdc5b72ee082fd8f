"""A calculator for whole numbers with + - * in normal precedence.

The text comes from the policy, so it is never evaluated as code: it is split
into numbers and operators, and anything else is an error.
"""

import re

MAX_LENGTH = 24
MAX_RESULT_LENGTH = 8

_ALLOWED = re.compile(r'[0-9+\-* ]*')
_NUMBER = r'[0-9]{1,6}'
_EXPRESSION = re.compile(rf' *-?{_NUMBER}(?: *[+\-*] *{_NUMBER})* *')
_TERM = re.compile(rf'([+\-]?)({_NUMBER}(?:\*{_NUMBER})*)')


def calculate(expression: str) -> int | None:
  """The value of an expression; None where it is not a valid one.

  Args:
    expression: numbers of up to six digits joined by + - *, a sign allowed in
      front, at most MAX_LENGTH characters.

  Returns:
    None for any other character or form, and for a result of more than
    MAX_RESULT_LENGTH characters.
  """
  if len(expression) > MAX_LENGTH or not _ALLOWED.fullmatch(expression):
    return None
  if not _EXPRESSION.fullmatch(expression):
    return None
  total = 0
  for sign, product in _TERM.findall(expression.replace(' ', '')):
    value = 1
    for factor in product.split('*'):
      value *= int(factor)
    total += -value if sign == '-' else value
  return total if len(str(total)) <= MAX_RESULT_LENGTH else None
