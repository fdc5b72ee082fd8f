"""Checks of estimator, losses, critic and optimizers (validation.validate)."""

from rl_tpu.config import checks
from rl_tpu.config import data_checks
from rl_tpu.config import group_checks
from rl_tpu.config import objective_checks
from rl_tpu.config import offpolicy_checks
from rl_tpu.config import schema

GROUP_ESTIMATORS = group_checks.GROUP_ESTIMATORS


def check(config: schema.ExperimentConfig) -> None:
  """Refuses settings of the learning rule that cannot work together.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  _check_gae(config)
  _check_advantage(config)
  _check_termination(config)
  group_checks.check(config)
  objective_checks.check(config)
  data_checks.check(config)
  _check_critic(config)
  offpolicy_checks.check(config)
  _check_batching(config)
  _check_memory(config)
  check_optimizer('actor_optimizer', config.actor_optimizer)
  check_optimizer('critic_optimizer', config.critic_optimizer)


def _check_memory(config: schema.ExperimentConfig) -> None:
  memory = config.memory
  for name in ('optimizers', 'critic', 'reference'):
    value = getattr(memory, name)
    checks.one_of(f'memory.{name}', value, 'device', 'host')
  checks.require(
      memory.critic == 'device' or config.critic.sharing == 'separate',
      'memory.critic',
      memory.critic,
      'the critic shares the backbone of the actor, which is always at work;'
      ' use memory.critic=device or critic.sharing=separate',
  )
  checks.require(
      memory.reference == 'device' or not config.model.lora.rank,
      'memory.reference',
      memory.reference,
      'under model.lora the reference is the base of the actor, which is always'
      ' at work; use memory.reference=device',
  )


def check_optimizer(name: str, optimizer: schema.OptimizerConfig) -> None:
  """Refuses an optimizer that cannot be built."""
  checks.positive(f'{name}.learning_rate', optimizer.learning_rate)
  checks.one_of(
      f'{name}.schedule', optimizer.schedule, 'constant', 'linear', 'cosine'
  )
  checks.at_least(f'{name}.warmup_steps', optimizer.warmup_steps, 0)
  checks.at_least(f'{name}.decay_steps', optimizer.decay_steps, 0)
  checks.require(
      optimizer.schedule == 'constant' or optimizer.decay_steps > 0,
      f'{name}.decay_steps',
      optimizer.decay_steps,
      f'schedule={optimizer.schedule} decays over this many optimizer steps:'
      ' make it above 0',
  )
  checks.within(f'{name}.end_fraction', optimizer.end_fraction, 0, 1)
  for beta in ('b1', 'b2'):
    value = getattr(optimizer, beta)
    checks.require(
        0 <= value < 1, f'{name}.{beta}', value, 'it must be in [0, 1)'
    )
  checks.positive(f'{name}.eps', optimizer.eps)
  checks.at_least(f'{name}.weight_decay', optimizer.weight_decay, 0)
  checks.positive(f'{name}.clip_norm', optimizer.clip_norm, optional=True)


def _check_gae(config: schema.ExperimentConfig) -> None:
  gae = config.gae
  checks.within('gae.gamma', gae.gamma, 0, 1)
  checks.one_of('gae.time_unit', gae.time_unit, 'token', 'turn')
  checks.one_of(
      'gae.cut',
      gae.cut,
      'continue',
      'reset_trace',
      'cut_terminal',
      'position_scaled',
  )
  for name in ('lambda_policy', 'lambda_critic'):
    value = getattr(gae, name)
    checks.require(
        (value.fixed is None) != (value.length_adaptive is None),
        f'gae.{name}',
        value,
        'set exactly one of fixed and length_adaptive',
    )
    if value.fixed is not None:
      checks.within(f'gae.{name}.fixed', value.fixed, 0, 1)
    checks.positive(
        f'gae.{name}.length_adaptive', value.length_adaptive, optional=True
    )
  checks.require(
      gae.time_unit == 'token' or gae.cut == 'continue',
      'gae.cut',
      gae.cut,
      'cut treatments are defined in token time only (G20): set'
      ' gae.time_unit=token or gae.cut=continue',
  )


def _check_advantage(config: schema.ExperimentConfig) -> None:
  advantage = config.advantage
  checks.one_of(
      'advantage.estimator', advantage.estimator, 'gae', *GROUP_ESTIMATORS
  )
  checks.one_of('advantage.norm', advantage.norm, 'none', 'batch', 'source')
  checks.at_least('advantage.eps', advantage.eps, 0)
  checks.at_least('advantage.std_floor', advantage.std_floor, 0)
  checks.at_least('advantage.min_count', advantage.min_count, 1)


def _check_termination(config: schema.ExperimentConfig) -> None:
  rules = config.termination
  for name in ('budget_truncation', 'context_truncation'):
    checks.one_of(
        f'termination.{name}',
        getattr(rules, name),
        'auto',
        'bootstrap',
        'terminal',
    )
  checks.one_of(
      'termination.runtime_abort',
      rules.runtime_abort,
      'by_cause',
      'terminal',
      'bootstrap',
      'exclude',
  )
  for name in ('infra_failure_critic', 'cancelled_critic'):
    value = getattr(rules, name)
    checks.one_of(f'termination.{name}', value, 'exclude', 'bootstrap')
  checks.within('termination.max_missing', rules.max_missing, 0, 1)
  checks.at_least('termination.max_unscored', rules.max_unscored, 1)


def _check_critic(config: schema.ExperimentConfig) -> None:
  critic = config.critic
  checks.one_of('critic.level', critic.level, 'token', 'turn')
  checks.require(
      critic.level == 'token' or config.gae.time_unit == 'turn',
      'critic.level',
      critic.level,
      'one value a turn needs time in turns (G19): set gae.time_unit=turn',
  )
  checks.at_least(
      'critic.updates_per_actor_update', critic.updates_per_actor_update, 1
  )
  checks.at_least('critic.warmup_steps', critic.warmup_steps, 0)
  checks.at_least('critic.warmup_updates', critic.warmup_updates, 1)
  checks.require(
      0 <= critic.holdout_fraction < 1,
      'critic.holdout_fraction',
      critic.holdout_fraction,
      'it must be in [0, 1)',
  )
  checks.positive('critic.value_clip', critic.value_clip, optional=True)
  checks.one_of('critic.values', critic.values, 'model', 'batch_mean')


def _check_batching(config: schema.ExperimentConfig) -> None:
  batching = config.batching
  for name in ('tasks_per_batch', 'minibatches', 'epochs'):
    checks.at_least(f'batching.{name}', getattr(batching, name), 1)
  checks.at_least('batching.row_length', batching.row_length, 2)
  rollouts = batching.tasks_per_batch * config.group.size
  checks.require(
      batching.minibatches <= rollouts,
      'batching.minibatches',
      batching.minibatches,
      f'a batch has {rollouts} rollouts (batching.tasks_per_batch times'
      ' group.size): make it at most that',
  )
