"""Tasks of one line that names a thing; a story has to come back to it."""

from collections.abc import Sequence

from rl_tpu.records import records
from rl_tpu.tasks import splits
from rl_tpu.text import hashing

SOURCE = 'stories'
FAMILIES = ('trained', 'held_out')
LINE = 'Tim looked for a {noun}.'

# Things with "a" in front of them that a small model of children's stories
# comes back to by itself in one story of twelve or more. The twenty held-out
# ones are the first in the order of their SHA-256.
TRAINED = tuple(
    """
    ball banana basket bear bed bell bird blanket block bone book bottle
    bowl boy bug bunny butterfly cake cap castle cat chair chicken clock
    clown coin cow doctor dog dragon dress farm fence fire fish flag flower
    fly fruit gift glove hole horse house jacket jet king kitten mitten
    monster mouse park peach pear phone pizza pond pot pumpkin puppy puzzle
    rabbit rock sheep ship spider squirrel stick stone tower tree
    """.split()
)
HELD_OUT = tuple(
    """
    bench bike boat box bridge car crown drum hat jar penguin piano picture
    pool ring shark swing table toy truck
    """.split()
)


def nouns(family: str) -> tuple[str, ...]:
  """The nouns of a family; no noun is in both.

  Raises:
    ValueError: another name.
  """
  if family not in FAMILIES:
    raise ValueError(f'family = {family!r}: it is one of {FAMILIES}.')
  return HELD_OUT if family == 'held_out' else TRAINED


class NounTasks(Sequence):
  """Every noun of a family, again and again."""

  def __init__(
      self,
      split: str = 'train',
      *,
      evaluated: str = 'held_out',
      repeats: int = 20,
  ):
    """Chooses the nouns.

    Args:
      split: train (trained nouns) or eval.
      evaluated: family of the split eval: held_out, or trained to see what
        was learned of the nouns that are trained on.
      repeats: tasks of every noun, which differ in their seed only.

    Raises:
      ValueError: another split or family, or fewer than one repeat.
    """
    splits.check(split)
    if evaluated not in FAMILIES:
      raise ValueError(
          f'tasks.settings.evaluated = {evaluated!r}: it is one of {FAMILIES}.'
      )
    if repeats < 1:
      raise ValueError(f'tasks.settings.repeats = {repeats}: at least 1.')
    self._family = evaluated if split == 'eval' else 'trained'
    self._nouns = nouns(self._family)
    self._count = repeats * len(self._nouns)

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> records.Task:
    """The task of an index: all nouns once, then all of them again.

    Raises:
      IndexError: outside the list.
    """
    index = splits.place(index, self._count)
    repeat, place = divmod(index, len(self._nouns))
    noun = self._nouns[place]
    task_id = f'{noun}/{repeat}'
    return records.Task(
        task_id=task_id,
        source=SOURCE,
        family=self._family,
        seed=int(hashing.of_text(task_id), 16) % 2**31,
        payload={'noun': noun, 'line': LINE.format(noun=noun)},
    )

  def indices_by_source(self) -> dict[str, range]:
    """Every task is of one source (D4)."""
    return {SOURCE: range(self._count)}
