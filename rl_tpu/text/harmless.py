"""Foreign text made safe to show: nothing in it steers a terminal."""

import unicodedata

# Control and format characters (escapes, marks that turn the direction of
# writing, letters without width), halves of pairs, private and unassigned
# ones, separators of lines and paragraphs.
_HIDDEN = frozenset({'Cc', 'Cf', 'Cs', 'Co', 'Cn', 'Zl', 'Zp'})
_KEPT = frozenset('\n\t')


def shown(text: str) -> str:
  """The text with characters that do not show as themselves spelt out.

  Args:
    text: of anybody.
  """
  if text.isascii() and text.isprintable():
    return text
  return ''.join(
      character
      if character in _KEPT or unicodedata.category(character) not in _HIDDEN
      else character.encode('unicode_escape', 'surrogatepass').decode('ascii')
      for character in text
  )


def shortened(text: str, limit: int) -> str:
  """The text, its middle left out where it is longer than `limit`."""
  left_out = len(text) - limit
  if left_out <= 0:
    return text
  half = limit // 2
  return (
      f'{text[:half]}\n[... {left_out} characters ...]\n'
      f'{text[len(text) - (limit - half):]}'
  )
