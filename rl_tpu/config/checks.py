"""Small refusals: each names the setting, the value and the cure."""

from typing import Any

from rl_tpu.config import fields


def require(holds: Any, name: str, value: Any, cure: str) -> None:
  """Raises ValueError naming setting, value and cure where `holds` is not."""
  if not holds:
    raise ValueError(f'{name}={value!r}: {cure}.')


def one_of(name: str, value: str, *choices: str) -> None:
  """Refuses a word that is none of the choices, naming the nearest."""
  near = fields.nearest(value, choices)
  cure = f'did you mean {near}? One of {", ".join(choices)}'
  require(value in choices, name, value, cure)


def at_least(name: str, value: float, low: float) -> None:
  """Refuses a number below `low`."""
  require(value >= low, name, value, f'it must be at least {low}')


def positive(name: str, value: float | None, *, optional: bool = False) -> None:
  """Refuses a number at or below 0 (or None, unless it is optional)."""
  if optional and value is None:
    return
  require(value is not None and value > 0, name, value, 'it must be above 0')


def within(name: str, value: float, low: float, high: float) -> None:
  """Refuses a number outside [low, high]."""
  require(low <= value <= high, name, value, f'it must be in [{low}, {high}]')
