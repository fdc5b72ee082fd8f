"""Checks of rewards and of what is sampled (section 9)."""

import math

from rl_tpu.config import checks
from rl_tpu.config import group_checks
from rl_tpu.config import schema


def check(config: schema.ExperimentConfig) -> None:
  """Refuses settings of rewards and data that cannot work together.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  _check_weights(config.reward)
  _check_mode(config.reward)
  _check_norm(config)
  _check_data(config.data)
  checks.within(
      'verifier.rescore_share', config.verifier.rescore_share, 0, 1
  )


def _check_weights(reward: schema.RewardConfig) -> None:
  for name, weight in reward.weights.items():
    checks.require(
        math.isfinite(weight), f'reward.weights.{name}', weight, 'not a number'
    )


def _check_mode(reward: schema.RewardConfig) -> None:
  checks.one_of('reward.mode', reward.mode, 'weighted', 'lexicographic')
  names = reward.constrained
  if reward.mode == 'weighted':
    checks.require(
        not names,
        'reward.constrained',
        names,
        'reward.mode=weighted adds every term up: set'
        ' reward.mode=lexicographic, or leave it empty',
    )
    return
  checks.require(
      names,
      'reward.constrained',
      names,
      'reward.mode=lexicographic needs the names of the format and cost terms'
      ' (D2): name them, or set reward.mode=weighted',
  )
  checks.require(
      'terminal' not in names,
      'reward.constrained',
      names,
      'terminal is the outcome that the other terms are subject to: take it'
      ' out',
  )
  for name in names:
    checks.require(
        reward.weights.get(name, 0.0) != 0,
        'reward.constrained',
        names,
        f'{name} has no weight: give it one with reward.weights.{name}',
    )


def _check_norm(config: schema.ExperimentConfig) -> None:
  reward = config.reward
  checks.one_of('reward.norm', reward.norm, 'none', 'affine', 'running')
  checks.at_least('reward.std_floor', reward.std_floor, 0)
  for field in ('affine_scale', 'affine_shift'):
    values = getattr(reward, field)
    checks.require(
        reward.norm == 'affine' or not values,
        f'reward.{field}',
        dict(values),
        f'it has no effect while reward.norm={reward.norm}: set'
        ' reward.norm=affine, or leave it empty',
    )
    for name, value in values.items():
      checks.require(
          math.isfinite(value), f'reward.{field}.{name}', value, 'not a number'
      )
  checks.require(
      reward.norm != 'affine' or reward.affine_scale or reward.affine_shift,
      'reward.affine_scale',
      dict(reward.affine_scale),
      'reward.norm=affine needs constants by verifier id: give them, or set'
      ' reward.norm=none',
  )
  for name, value in reward.affine_scale.items():
    checks.positive(f'reward.affine_scale.{name}', value)
  unscored = _unscored_ends(config)
  for name, value in reward.affine_shift.items():
    checks.require(
        value == 0 or not unscored,
        f'reward.affine_shift.{name}',
        value,
        f'a shift pays or fines ends without a score, and {unscored} can be'
        ' one (D1): set it to 0, or let every end be scored',
    )


def _unscored_ends(config: schema.ExperimentConfig) -> str:
  """A setting under which a rollout may end without a score; empty if none."""
  if config.advantage.estimator in group_checks.GROUP_ESTIMATORS:
    return ''
  rules, flags = config.termination, config.budgets
  judged = flags.budget_visible or flags.holds_at_eval
  for name in ('budget_truncation', 'context_truncation'):
    value = getattr(rules, name)
    if value == 'bootstrap' or (value == 'auto' and not judged):
      return f'termination.{name}={value}'
  if rules.runtime_abort == 'bootstrap':
    return 'termination.runtime_abort=bootstrap'
  for name in ('infra_failure_critic', 'cancelled_critic'):
    if getattr(rules, name) == 'bootstrap':
      return f'termination.{name}=bootstrap'
  return ''


def _check_data(data: schema.DataConfig) -> None:
  for name, weight in data.mix.items():
    checks.require(
        math.isfinite(weight) and weight >= 0,
        f'data.mix.{name}',
        weight,
        'a weight is a number of at least 0',
    )
  checks.require(
      not data.mix or any(weight > 0 for weight in data.mix.values()),
      'data.mix',
      dict(data.mix),
      'one source at least needs a weight above 0',
  )
  checks.one_of('data.curriculum', data.curriculum, 'none', 'success')
  checks.within('data.easy_weight', data.easy_weight, 0, 1)
  checks.within('data.easier_rate', data.easier_rate, 0, 1)
  checks.require(
      0 < data.min_weight <= 1,
      'data.min_weight',
      data.min_weight,
      'it must be in (0, 1]: a task that is never drawn is never measured',
  )
  checks.at_least('data.min_outcomes', data.min_outcomes, 1)
  checks.require(
      data.success_window >= data.min_outcomes,
      'data.success_window',
      data.success_window,
      'fewer outcomes are kept than data.min_outcomes'
      f' ({data.min_outcomes}): make it at least that',
  )
