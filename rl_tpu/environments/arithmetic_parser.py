"""The parts of a reply in the arithmetic environment, by token type (L19)."""

import re

# Canonical whole numbers: one spelling per value, so that equal strings and
# reasoning-gym's score agree on every answer that can be given.
NUMBER = r'(?:0|-?[1-9][0-9]{0,5})'
CALL = re.compile(r' (?P<tool_name>calc)\((?P<arg_value>[^()\n]*)\)\n')
ANSWER = re.compile(rf' (?P<tool_name>answer) (?P<arg_value>{NUMBER})\n')
REPORT = re.compile(rf'(?: {NUMBER})+\n')
_WORD = re.compile(r'[^ \n]+')


def parts(text: str) -> list[tuple[int, int, str]]:
  """(start, stop, token type) of the characters of a reply.

  ` calc(34 + 25)` is a tool's name and the value of its argument, ` answer 59`
  too, and the report ` 59 91` is values; what stands around them is structure.
  A reply that is none of these has no parts: it is text.
  """
  found = CALL.fullmatch(text) or ANSWER.fullmatch(text)
  if found:
    inner = [(*found.span(name), name) for name in ('tool_name', 'arg_value')]
  elif REPORT.fullmatch(text):
    inner = [(*word.span(), 'arg_value') for word in _WORD.finditer(text)]
  else:
    return []
  return [(0, len(text), 'structure'), *inner]
