"""Tasks of several arithmetic problems from reasoning-gym's generators.

Three properties of the generators are dealt with here. Item i of seed s is
drawn from s + i, so two seeds give nearly the same list: problems are split
between train and eval by a hash of their text, never by seed. Without
parentheses `basic_arithmetic` works from left to right, so some of its
answers contradict normal precedence: those are left out, because a calculator
would be wrong on them. Answers and numbers are kept short, because a window
is small.
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import reasoning_gym

from rl_tpu.records import records
from rl_tpu.tasks import splits
from rl_tpu.text import hashing

SOURCE = 'reasoning_gym'
FAMILY = 'arithmetic'
DEFAULT_COUNTS = {'train': 100_000, 'eval': 4096}

MIN_TERMS = 2
MAX_TERMS = 3
MAX_DIGITS = 2
MAX_ANSWER_LENGTH = 4

# Items drawn per generator; what the filters leave is about 18,000 problems.
_DRAWN = 16_000
_GENERATORS = {
    'chain_sum': {'min_terms': MIN_TERMS, 'max_terms': MAX_TERMS},
    'basic_arithmetic': {
        'min_terms': MIN_TERMS,
        'max_terms': MAX_TERMS,
        'operators': ['+', '-', '*'],
        'allow_parentheses': False,
        'allow_negation': False,
    },
}
_NUMBER = re.compile(r'[0-9]+')


class ArithmeticTasks(Sequence):
  """A fixed list of tasks; item i depends on split, seed and i alone."""

  def __init__(
      self,
      split: str = 'train',
      *,
      count: int | None = None,
      seed: int = 0,
      problems: int = 3,
  ):
    """Draws the pool of problems once per process.

    Args:
      split: train or eval; no problem is in both.
      count: number of tasks.
      seed: another seed gives other tasks from the same pool.
      problems: different problems per task.

    Raises:
      ValueError: another split, or a number below 1.
    """
    splits.check(split)
    count = DEFAULT_COUNTS[split] if count is None else count
    for name, value in (('count', count), ('problems', problems)):
      if value < 1:
        raise ValueError(f'tasks.settings.{name} = {value}: at least 1.')
    self._split = split
    self._count = count
    self._seed = seed
    self._num_problems = problems
    self._pool = problem_pool(split)

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index: int) -> records.Task:
    """The task of an index.

    Raises:
      IndexError: outside the list.
    """
    index = splits.place(index, self._count)
    rng = np.random.default_rng(
        [splits.SPLITS.index(self._split), self._seed, index]
    )
    places: list[int] = []
    while len(places) < self._num_problems:
      place = int(rng.integers(len(self._pool)))
      if place not in places:
        places.append(place)
    problems = [self._pool[place] for place in places]
    return _task(problems, seed=int(rng.integers(2**31)))

  def indices_by_source(self) -> dict[str, range]:
    """Every task is of one source (D4)."""
    return {SOURCE: range(self._count)}

  def easier(self, task: records.Task) -> records.Task | None:
    """The task with as many problems of two terms, from the same split (D7).

    Equal tasks have equal variants; None where it has no longer problem.
    """
    problems = task.payload['problems']
    if all(_num_terms(p) == MIN_TERMS for p in problems):
      return None
    pool = _short_problems(self._split)
    if len(pool) < len(problems):
      return None
    rng = np.random.default_rng(int(hashing.of_text(task.task_id), 16))
    places = rng.choice(len(pool), len(problems), replace=False)
    return _task([pool[place] for place in places], seed=task.seed)


def _task(problems: list[dict[str, Any]], *, seed: int) -> records.Task:
  return records.Task(
      task_id=hashing.of_json([p['expression'] for p in problems]),
      source=SOURCE,
      family=FAMILY,
      seed=seed,
      payload={'problems': problems},
  )


def _num_terms(problem: dict[str, Any]) -> int:
  return len(_NUMBER.findall(problem['expression']))


@functools.cache
def _short_problems(split: str) -> tuple[dict[str, Any], ...]:
  """The problems of a split with the fewest terms."""
  return tuple(p for p in problem_pool(split) if _num_terms(p) == MIN_TERMS)


@functools.cache
def problem_pool(split: str) -> tuple[dict[str, Any], ...]:
  """The different problems of a split, in a fixed order.

  Each holds `generator`, `expression`, `answer` and `entry`, the part of the
  generator's item that its `score_answer` reads.
  """
  return tuple(p for p in _all_problems() if split_of(p['expression']) == split)


def split_of(expression: str) -> str:
  """The split that a problem's text belongs to."""
  return splits.of_text(expression.replace(' ', ''))


def value_of(expression: str) -> int:
  """The value of numbers joined by + - * under normal precedence."""
  terms = expression.replace(' ', '').replace('-', '+-').split('+')
  return sum(math.prod(int(f) for f in t.split('*')) for t in terms if t)


def is_usable(expression: str, answer: str) -> bool:
  """True where the answer is what a calculator says and both are short."""
  numbers = _NUMBER.findall(expression)
  return (
      len(numbers) <= MAX_TERMS
      and all(len(n) <= MAX_DIGITS for n in numbers)
      and len(answer) <= MAX_ANSWER_LENGTH
      and str(value_of(expression)) == answer
  )


@functools.cache
def _all_problems() -> tuple[dict[str, Any], ...]:
  problems: dict[str, dict[str, Any]] = {}
  for name, settings in _GENERATORS.items():
    items = reasoning_gym.create_dataset(
        name,
        size=_DRAWN,
        seed=0,
        min_digits=1,
        max_digits=MAX_DIGITS,
        **settings,
    )
    for item in items:
      expression, answer = item['metadata']['expression'], item['answer']
      if is_usable(expression, answer):
        problems[expression] = {
            'generator': name,
            'expression': expression,
            'answer': answer,
            'entry': {'answer': answer},
        }
  return tuple(problems[e] for e in sorted(problems))
