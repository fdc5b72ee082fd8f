"""Scores reported answers with reasoning-gym's own `score_answer`."""

import functools
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from typing import Any

import reasoning_gym
from reasoning_gym import utils

from rl_tpu.verifiers import protocol


def _version(settings: str) -> str:
  """Of the installed distribution; the module's own attribute is stale."""
  return f"{importlib.metadata.version('reasoning-gym')}+{settings}"


@functools.cache
def _scorer(generator: str) -> Callable[[str, dict[str, Any]], float]:
  return reasoning_gym.get_score_answer_fn(generator)


class ArithmeticVerifier:
  """All answers right, and the share right by position.

  value = (1 - partial) * [all right] + partial * share. An answer is right
  where score_answer gives exactly 1: part credit of the generators is no
  success. A report with another number of answers than problems is not
  solved; its answers count by position all the same.
  """

  verifier_id = 'reasoning_gym/arithmetic'
  deterministic = True

  def __init__(self, partial: float = 0.5):
    """Args: partial: weight of the share.

    Raises:
      ValueError: outside [0, 1].
    """
    if not 0.0 <= partial <= 1.0:
      raise ValueError(
          f'verifier.settings.partial = {partial}: a weight lies in [0, 1].'
      )
    self._partial = partial

  @property
  def version(self) -> str:
    """Of the installed distribution, settings included."""
    return _version(f'partial={self._partial:g}')

  def score(self, evidence: Mapping[str, Any]) -> protocol.Score:
    """Scores `reported` against `problems`, entry by entry.

    Raises:
      ValueError: evidence without problems.
    """
    problems, reported = evidence['problems'], evidence['reported']
    if not problems:
      raise ValueError('the evidence holds no problems.')
    right = [_is_right(p, a) for p, a in zip(problems, reported)]
    share = sum(right) / len(problems)
    solved = all(right) and len(reported) == len(problems)
    value = (1.0 - self._partial) * solved + self._partial * share
    return protocol.Score(
        value=value,
        solved=solved,
        components={'all_right': float(solved), 'share_right': share},
    )


def _is_right(problem: Mapping[str, Any], answer: Any) -> bool:
  if not isinstance(answer, str):
    return False
  score = _scorer(problem['generator'])(answer.strip(), problem['entry'])
  return score == 1.0


class DatasetVerifier:
  """The dataset's own score of the answer in a single reply.

  Serves `rl_tpu.tasks.reasoning_gym:DatasetTasks`. Solved is a score of 1;
  part credit of a dataset is reward and no success.
  """

  verifier_id = 'reasoning_gym/dataset'
  deterministic = True

  def __init__(self, answer: str = 'tag'):
    """Chooses what of a reply is its answer.

    Args:
      answer: tag (the last <answer>), number (the last one) or reply (all).

    Raises:
      ValueError: another word.
    """
    if answer not in _ANSWERS:
      raise ValueError(
          f'verifier.settings.answer = {answer!r}: one of'
          f' {", ".join(_ANSWERS)}.'
      )
    self._answer = answer

  @property
  def version(self) -> str:
    """Of the installed distribution, settings included."""
    return _version(f'answer={self._answer}')

  def score(self, evidence: Mapping[str, Any]) -> protocol.Score:
    """Scores `reply` against the entry in `answer`; no answer scores 0."""
    asked = evidence['answer']
    given = _ANSWERS[self._answer](evidence['reply'])
    value = 0.0
    if given is not None:
      value = float(_scorer(asked['dataset'])(given, asked['entry']))
    return protocol.Score(
        value=value,
        solved=value == 1.0,
        components={'answered': float(given is not None)},
    )


def _last_number(reply: str) -> str | None:
  found = _NUMBER.findall(reply)
  return found[-1] if found else None


_NUMBER = re.compile(r'-?\d+(?:\.\d+)?', re.ASCII)
_ANSWERS = {
    'tag': utils.extract_answer,
    'number': _last_number,
    'reply': str.strip,
}
