"""What the task sources share: the two splits, and places in a list."""

from rl_tpu.text import hashing

SPLITS = ('train', 'eval')
EVAL_PERCENT = 10


def check(split: str) -> None:
  """Refuses a word that is no split.

  Raises:
    ValueError: neither train nor eval.
  """
  if split not in SPLITS:
    raise ValueError(f'split = {split!r}: it is train or eval.')


def of_text(text: str) -> str:
  """The split of a task with that text, for generators whose seeds overlap."""
  place = int(hashing.of_text(text), 16) % 100
  return 'eval' if place < EVAL_PERCENT else 'train'


def place(index: int, count: int) -> int:
  """The place of an index, which may count from the end.

  Raises:
    IndexError: outside the list.
  """
  if not -count <= index < count:
    raise IndexError(f'task {index} of {count}.')
  return index % count
