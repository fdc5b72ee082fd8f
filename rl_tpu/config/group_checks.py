"""Checks of groups and of the estimators that compare rollouts (section 5)."""

from rl_tpu.config import checks
from rl_tpu.config import schema

GROUP_ESTIMATORS = ('grpo', 'dr_grpo', 'rloo', 'process', 'gigpo')


def check(config: schema.ExperimentConfig) -> None:
  """Refuses settings of groups that cannot work together.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  group = config.group
  checks.at_least('group.size', group.size, 1)
  checks.at_least('group.eps', group.eps, 0)
  checks.at_least('group.std_floor', group.std_floor, 0)
  checks.at_least('group.min_size', group.min_size, 2)
  checks.one_of(
      'group.on_mismatch', group.on_mismatch, 'split', 'drop', 'error'
  )
  checks.at_least('group.max_rounds', group.max_rounds, 1)
  _check_gigpo(config.gigpo)
  if config.advantage.estimator in GROUP_ESTIMATORS:
    _check_estimator(config)
    _check_no_critic(config)
    return
  checks.require(
      not group.dynamic_sampling,
      'group.dynamic_sampling',
      group.dynamic_sampling,
      f'advantage.estimator={config.advantage.estimator} learns from tasks'
      ' whose rollouts all end alike too: set it to false, or use a group'
      ' estimator',
  )


def _check_gigpo(gigpo: schema.GigpoConfig) -> None:
  checks.within('gigpo.gamma', gigpo.gamma, 0, 1)
  checks.at_least('gigpo.omega', gigpo.omega, 0)
  checks.one_of('gigpo.norm', gigpo.norm, 'std', 'none')
  checks.one_of('gigpo.anchor', gigpo.anchor, 'state', 'observation')


def _check_estimator(config: schema.ExperimentConfig) -> None:
  group, estimator = config.group, config.advantage.estimator
  checks.require(
      group.size >= 2,
      'group.size',
      group.size,
      f'advantage.estimator={estimator} compares rollouts of one task: make it'
      ' at least 2, or use advantage.estimator=gae',
  )
  checks.require(
      group.min_size <= group.size,
      'group.min_size',
      group.min_size,
      'every group would be incomplete: make it at most group.size'
      f' ({group.size})',
  )
  checks.require(
      estimator != 'dr_grpo' or config.loss.aggregation == 'constant',
      'loss.aggregation',
      config.loss.aggregation,
      'advantage.estimator=dr_grpo goes with a fixed length (E4): set'
      ' loss.aggregation=constant',
  )
  checks.require(
      estimator != 'process' or not group.outcome_only,
      'group.outcome_only',
      group.outcome_only,
      'advantage.estimator=process compares step rewards alone (E5): set it to'
      ' false',
  )


def _check_no_critic(config: schema.ExperimentConfig) -> None:
  """A group estimator has no critic, so nothing is bootstrapped (E2)."""
  estimator = config.advantage.estimator
  for name in (
      'budget_truncation',
      'context_truncation',
      'runtime_abort',
  ):
    value = getattr(config.termination, name)
    checks.require(
        value != 'bootstrap',
        f'termination.{name}',
        value,
        f'advantage.estimator={estimator} has no critic to bootstrap from (E2):'
        ' use auto or terminal',
    )
  for name in ('infra_failure_critic', 'cancelled_critic'):
    value = getattr(config.termination, name)
    checks.require(
        value == 'exclude',
        f'termination.{name}',
        value,
        f'advantage.estimator={estimator} has no critic to keep the rollout for'
        ' (E2): use exclude',
    )
  checks.require(
      config.critic.warmup_steps == 0,
      'critic.warmup_steps',
      config.critic.warmup_steps,
      f'advantage.estimator={estimator} has no critic to warm up: set it to 0',
  )
  checks.require(
      config.gae.cut == 'continue',
      'gae.cut',
      config.gae.cut,
      f'advantage.estimator={estimator} has no trace to cut: set'
      ' gae.cut=continue',
  )
