"""Scores reported answers with reasoning-gym's own `score_answer`."""

import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import reasoning_gym

from rl_tpu.verifiers import protocol


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
    """Of the installed distribution; the module's own attribute is stale."""
    installed = importlib.metadata.version('reasoning-gym')
    return f'{installed}+partial={self._partial:g}'

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
