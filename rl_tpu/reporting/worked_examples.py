"""The reference's small examples, worked by the functions that train.

  python -m rl_tpu.reporting.worked_examples
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from rich import console as console_lib
from rich import table as table_lib

from rl_tpu.advantages import callable as callable_lib
from rl_tpu.advantages import groups
from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.losses import policy
from rl_tpu.metrics import group_figures

REWARDS, VALUES = (0.0, 0.0, 1.0), (0.9, 0.3, 0.8)
OLD_PROB, NEW_PROB = (0.5, 0.25, 0.5), (0.6, 0.2, 0.6)
GROUP = (0.0, 0.0, 1.0, 1.0)
GROUP_SIZE = 8
CUT = {'reward': 0.0, 'value': 0.6, 'next_value': 0.8, 'gamma': 0.9}
TASK_TOKENS, TASK_LOSS = (2, 6), (1.0, 3.0)


def three_steps(trace_decay: float) -> list[float]:
  """Advantages of a scored run of three actions (G11, G12)."""
  return callable_lib.gae(
      REWARDS,
      VALUES,
      [*VALUES[1:], 0.0],
      terminated=[False, False, True],
      truncated=[False] * 3,
      gamma=1.0,
      trace_decay=trace_decay,
  )


def ratios() -> tuple[list[float], float]:
  """Ratio of every token, and their product, which PPO does not use (L1)."""
  new, old = (jnp.log(jnp.asarray([p])) for p in (NEW_PROB, OLD_PROB))
  terms = policy.clipped_loss(
      new, old, jnp.ones_like(new), jnp.ones(new.shape, bool),
      clip=schema.ClipConfig(),
  )
  found = np.asarray(terms.ratio_BT)[0].tolist()
  return found, math.prod(found)


def group() -> dict[str, list[float]]:
  """Advantages of four rollouts of one task (E3, E4)."""
  return {
      'GRPO': groups.grpo(GROUP, eps=0.0, std_floor=1e-6).tolist(),
      'Dr.GRPO': groups.dr_grpo(GROUP).tolist(),
      'RLOO': groups.rloo(GROUP).tolist(),
  }


def cut_residuals() -> tuple[float, float]:
  """The residual at a cut, and of the same cut taken for an end (G9)."""
  residual = lambda is_end: callable_lib.gae(
      [CUT['reward']], [CUT['value']], [CUT['next_value']],
      terminated=[is_end], truncated=[False],
      gamma=CUT['gamma'], trace_decay=1.0,
  )[0]
  return residual(False), residual(True)


def aggregated(mode: str) -> float:
  """One loss of two tasks with 2 and 6 tokens (4.2)."""
  task = np.repeat(np.arange(2), TASK_TOKENS)
  weight = aggregation.weights(
      np.ones(len(task), bool), segment=task, rollout=task, task=task, mode=mode
  )
  return float(weight @ np.repeat(TASK_LOSS, TASK_TOKENS))


def rows() -> list[tuple[str, str, str]]:
  """Example, ids, result."""
  show: Callable[..., str] = lambda numbers: '  '.join(
      f'{number:.4g}' for number in numbers
  )
  single, product = ratios()
  kept, mislabelled = cut_residuals()
  found = [
      (f'three actions, lambda {decay:g}', 'G11 G12', show(three_steps(decay)))
      for decay in (0.5, 1.0)
  ]
  found += [
      ('ratio of each token', 'L1', show(single)),
      ('their product, not used by PPO', 'L1', show([product])),
  ]
  found += [
      (f'{name} of returns 0 0 1 1', 'E3 E4', show(numbers))
      for name, numbers in group().items()
  ]
  found += [
      (
          f'P(mixed group), {GROUP_SIZE} rollouts, success {p:g}',
          'E8',
          f'{group_figures.p_mix(p, GROUP_SIZE):.1%}',
      )
      for p in (0.02, 0.2, 0.98)
  ]
  found += [
      ('residual at a cut', 'G9', show([kept])),
      ('the same cut taken for an end', 'G9', show([mislabelled])),
  ]
  found += [
      (f'loss of two tasks, {mode}', 'L8', show([aggregated(mode)]))
      for mode in ('task_mean', 'token')
  ]
  return found


def main() -> None:
  """Prints the table."""
  table = table_lib.Table(title='worked examples')
  for name in ('example', 'ids', 'result'):
    table.add_column(name)
  for row in rows():
    table.add_row(*row)
  console_lib.Console(width=88).print(table)


if __name__ == '__main__':
  main()
