"""Is an answer what was asked for? What is none ends its rollout (T14, K35).

Environments and verifiers are the user's code, often in front of a service
that may say anything. What they answer is looked at once, where it arrives, so
that everything behind it can rely on the protocol.
"""

import json
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_tpu.environments import protocol
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers


class Garbage(ValueError):
  """An answer of another type or shape, or with numbers that are none."""


def check(method: str, answer: Any) -> None:
  """Refuses what is no answer of a method of an environment.

  Args:
    method: of the environment.
    answer: what it returned.

  Raises:
    Garbage: the method and what is wrong are named.
  """
  if method in _CHECKS:
    _CHECKS[method](method, answer)


def check_score(answer: Any) -> None:
  """Refuses what is no score.

  Raises:
    Garbage: what is wrong is named.
  """
  _is_a('score', answer, verifiers.Score)
  _number('score', 'value', answer.value)
  _is_a('score.solved', answer.solved, (bool, np.bool_))
  _numbers('score.components', answer.components)


def _is_a(what: str, value: Any, kind: Any) -> None:
  if not isinstance(value, kind):
    raise Garbage(f'{what} is a {type(value).__name__}, no {_name(kind)}.')


def _name(kind: Any) -> str:
  kinds = kind if isinstance(kind, tuple) else (kind,)
  return ' or '.join(k.__name__ for k in kinds)


def _text(what: str, value: Any) -> None:
  _is_a(what, value, str)
  try:
    value.encode('utf-8')
  except UnicodeEncodeError as error:
    # Half a surrogate pair: JSON may carry one, and no tokenizer takes it.
    raise Garbage(f'{what} is no text: {error.reason}.') from error


def _number(what: str, name: str, value: Any) -> None:
  if isinstance(value, numbers.Real) and _is_finite(value):
    return
  # No number is not a 0 (K35).
  raise Garbage(f'{what}: {name} = {value!r:.100}, which is no number.')


def _is_finite(value: Any) -> bool:
  try:
    return math.isfinite(value)
  except OverflowError:  # An integer that no float holds.
    return False


def _numbers(what: str, values: Any) -> None:
  _is_a(what, values, Mapping)
  for name, value in values.items():
    _text(f'a name of {what}', name)
    _number(what, name, value)


def _messages(what: str, messages: Any) -> None:
  _is_a(what, messages, (tuple, list))
  for message in messages:
    _is_a(f'an entry of {what}', message, protocol.Message)
    _text(f'a role of {what}', message.role)
    for name in ('content', 'reasoning_content', 'tool_call_id', 'name'):
      _text(f'a {name} of {what}', getattr(message, name))
    _is_a(f'tool_calls of {what}', message.tool_calls, tuple)
    for call in message.tool_calls:
      _is_a(f'a call of {what}', call, Mapping)
      _json(f'a call of {what}', call)


def _observation(what: str, observation: Any) -> None:
  _is_a(what, observation, protocol.Observation)
  _messages(f'{what}.messages', observation.messages)
  _messages(f'{what}.prompt', observation.prompt)


def _step(what: str, step: Any) -> None:
  _is_a(what, step, protocol.Step)
  _numbers(f'{what}.rewards', step.rewards)
  _numbers(f'{what}.counters', step.counters)
  if step.observation is not None:
    _observation(f'{what}.observation', step.observation)
  if step.end is not None:
    _is_a(f'{what}.end', step.end, protocol.End)
    _is_a(f'{what}.end.kind', step.end.kind, term.Termination)
  elif step.observation is None:
    raise Garbage(f'{what} has neither an observation nor an end.')


def _evidence(what: str, evidence: Any) -> None:
  _is_a(what, evidence, dict)
  _json(what, evidence)


def _json(what: str, value: Any) -> None:
  try:
    json.dumps(value, allow_nan=False)
  except (TypeError, ValueError) as error:
    raise Garbage(f'{what} is no JSON: {error}.') from error


def _text_or_none(what: str, value: Any) -> None:
  if value is not None:
    _text(what, value)


# `remember` answers nothing.
_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    'reset': _observation,
    'instruction': _messages,
    'step': _step,
    'summarise': _text,
    'evidence': _evidence,
    'state_id': _text,
    'tenant_id': _text_or_none,
}
