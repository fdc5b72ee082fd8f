"""Dimension letters and the shape check that array code starts with.

The letters that array names end in (`reward_BT`):

  B  sub-trace rows (a packed row may hold several segments)
  T  tokens of a row
  N  segments of a batch
  R  rollouts of a batch
  G  rollouts of one task
  S  decode slots of the sampler
  K  head width; in the sampler's `generate`, tokens per call
  V  vocabulary
  D  model width
  F  width of the feed-forward layer
  H  attention heads
  L  decoder layers
  M  bins of a value head
  Y  token types
  J  action tokens of a batch, in time order
  U  turns of a batch, in time order
"""

from typing import Any

LETTERS = 'BTNRGSKVDFHLMYJU'


def check_shapes(**arrays: Any) -> dict[str, int]:
  """Checks that every letter stands for one size across the arrays given.

  Args:
    **arrays: arrays by name; the letters after the last underscore name the
      dimensions, outermost first. None is passed over.

  Returns:
    The size of each letter.

  Raises:
    ValueError: a rank or a size that does not fit, naming both arrays.
  """
  sizes: dict[str, int] = {}
  owner: dict[str, str] = {}
  for name, array in arrays.items():
    if array is None:
      continue
    letters = name.rsplit('_', 1)[-1]
    unknown = set(letters) - set(LETTERS)
    if unknown:
      raise ValueError(f'{name}: {sorted(unknown)} are no dimension letters.')
    if len(letters) != array.ndim:
      raise ValueError(
          f'{name} has shape {array.shape}, but its name says {len(letters)}'
          ' dimensions.'
      )
    for letter, size in zip(letters, array.shape):
      if sizes.setdefault(letter, size) != size:
        raise ValueError(
            f'{name} has {letter}={size}, but {owner[letter]} has'
            f' {letter}={sizes[letter]}.'
        )
      owner.setdefault(letter, name)
  return sizes
