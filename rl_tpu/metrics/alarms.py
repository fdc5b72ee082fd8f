"""Signs that training goes wrong without an error (C7, C12, C13)."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_tpu.config import schema
from rl_tpu.metrics import diagnostics

# A trend counts from so many standard errors on: of two halves of pure noise
# one in forty rises, and one in forty falls, by chance.
STANDARD_ERRORS = 2.0

# What a window is kept of.
SERIES = ('value_loss', 'raw_return', 'held_out_mse')


@dataclasses.dataclass(frozen=True)
class Alarm:
  """One alarm.

  Attributes:
    name: short, a part of its tag.
    message: what was seen and what to look at.
  """

  name: str
  message: str


def trend(values: Sequence[float | None]) -> int:
  """1 where a series rises, -1 where it falls, 0 where neither is clear.

  The means of both halves are compared; their distance has to exceed
  STANDARD_ERRORS of it, and the floor of G15.

  Args:
    values: in time order; one that is unknown makes the trend unclear.
  """
  if any(v is None or not np.isfinite(v) for v in values) or len(values) < 4:
    return 0
  series = np.asarray(values, np.float64)
  middle = len(series) // 2
  early, late = series[:middle], series[-middle:]
  change = float(late.mean() - early.mean())
  error = np.sqrt((early.var(ddof=1) + late.var(ddof=1)) / middle)
  if diagnostics.degenerate(series, abs(change)):
    return 0
  return int(np.sign(change)) if abs(change) > STANDARD_ERRORS * error else 0


def one_sided(
    advantage: np.ndarray, position: np.ndarray
) -> tuple[float | None, float | None]:
  """Shares of the positive advantage in the first and in the last tenth.

  Args:
    advantage: [n] of trained tokens.
    position: [n] tenth of j / N.

  Returns:
    None each where no advantage is positive.
  """
  mass = np.maximum(np.asarray(advantage, np.float64), 0.0)
  total = mass.sum()
  if not total > 0:
    return None, None
  last = diagnostics.POSITION_BINS - 1
  share = lambda tenth: float(mass[position == tenth].sum() / total)
  return share(0), share(last)


def same_returns(returns: np.ndarray) -> bool:
  """C12: all returns of a batch are equal, by the comparator of G15."""
  returns = np.asarray(returns, np.float64)
  return bool(returns.size) and diagnostics.degenerate(
      returns, float(returns.std())
  )


class Watch:
  """Windows over batches, and the alarms that they raise."""

  def __init__(self, config: schema.AlarmConfig):
    """Starts with empty windows."""
    self._config = config
    self._windows: dict[str, collections.deque] = {
        name: collections.deque(maxlen=config.window) for name in SERIES
    }

  def record(
      self,
      *,
      value_loss: float | None,
      raw_return: float | None,
      held_out_mse: float | None,
      first: float | None,
      last: float | None,
  ) -> list[Alarm]:
    """Takes a batch in; returns what is wrong with it.

    Args:
      value_loss: of the batch's critic updates.
      raw_return: mean return of its rollouts, before normalisation; None
        while the actor is frozen, whose return has no trend.
      held_out_mse: error on tasks that no critic update sees (C7).
      first: share of the positive advantage in the first tenth.
      last: the same in the last tenth.
    """
    given = (value_loss, raw_return, held_out_mse)
    for name, value in zip(SERIES, given):
      self._windows[name].append(value)
    found = [*self._trends()]
    for place, share in (('first', first), ('last', last)):
      if share is not None and share > self._config.one_sided:
        found.append(
            Alarm(
                f'one_sided_{place}',
                f'{share:.0%} of the positive advantage lies in the {place}'
                ' tenth of the rollouts'
                f' (alarm.one_sided={self._config.one_sided:g}).',
            )
        )
    return found

  def _trends(self) -> list[Alarm]:
    window = self._config.window
    if len(self._windows['value_loss']) < window:
      return []
    way = {name: trend(list(w)) for name, w in self._windows.items()}
    found = []
    if way['value_loss'] < 0 and way['raw_return'] < 0:
      found.append(
          Alarm(
              'return_falls',
              f'over {window} batches the value loss falls while the raw return'
              ' falls: look at the sign of the advantages, the masks of ends,'
              ' the bootstrap and the scale of rewards.',
          )
      )
    if way['value_loss'] < 0 and way['held_out_mse'] > 0:
      found.append(
          Alarm(
              'held_out_rises',
              f'over {window} batches the value loss falls while the error on'
              ' held-out tasks rises: the critic fits its training tasks only.',
          )
      )
    return found

  def state(self) -> dict[str, list[float | None]]:
    """JSON form for the checkpoint."""
    return {name: list(window) for name, window in self._windows.items()}

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on with what `state` gave."""
    for name, window in self._windows.items():
      window.clear()
      window.extend(state.get(name, ()))
