"""Checks of old data, alignment, alarms and the critic's warm-up."""

from rl_tpu.config import checks
from rl_tpu.config import group_checks
from rl_tpu.config import schema


def check(config: schema.ExperimentConfig) -> None:
  """Refuses settings of sections 6 and 7 that cannot work together.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  _check_staleness(config)
  _check_alignment(config.alignment)
  _check_alarm(config.alarm)
  _check_warmup(config)


def _check_staleness(config: schema.ExperimentConfig) -> None:
  staleness = config.staleness
  checks.at_least('staleness.max_version_gap', staleness.max_version_gap, 0)
  checks.positive('staleness.max_kl', staleness.max_kl, optional=True)
  checks.positive(
      'staleness.max_queue_seconds', staleness.max_queue_seconds, optional=True
  )
  checks.one_of('staleness.over', staleness.over, 'discard', 'mask')
  checks.require(
      staleness.max_kl is None or not config.sampling.allow_unreplayable,
      'staleness.max_kl',
      staleness.max_kl,
      'with sampling.allow_unreplayable the log-probabilities of sampler and'
      ' trainer are of different distributions (O5): set staleness.max_kl=None',
  )


def _check_alignment(alignment: schema.AlignmentConfig) -> None:
  for name in ('max_abs', 'mean_abs'):
    value = getattr(alignment, name)
    checks.positive(f'alignment.{name}', value, optional=True)
    checks.require(
        alignment.enabled or value is None,
        f'alignment.{name}',
        value,
        'it has no effect while alignment.enabled=false: enable the check, or'
        ' set the limit to None',
    )
  checks.at_least('alignment.every', alignment.every, 0)
  checks.require(
      alignment.enabled or not alignment.every,
      'alignment.every',
      alignment.every,
      'it has no effect while alignment.enabled=false',
  )


def _check_alarm(alarm: schema.AlarmConfig) -> None:
  checks.at_least('alarm.window', alarm.window, 4)
  checks.require(
      0.5 <= alarm.one_sided <= 1,
      'alarm.one_sided',
      alarm.one_sided,
      'it must be in [0.5, 1]: below, both ends of a rollout could be over it',
  )


def _check_warmup(config: schema.ExperimentConfig) -> None:
  critic = config.critic
  if critic.warmup_min_ev is None:
    checks.require(
        critic.warmup_max_steps is None,
        'critic.warmup_max_steps',
        critic.warmup_max_steps,
        'without critic.warmup_min_ev the warm-up ends after'
        ' critic.warmup_steps: set critic.warmup_min_ev, or this to None',
    )
    return
  name, value = 'critic.warmup_min_ev', critic.warmup_min_ev
  checks.require(
      value <= 1, name, value, 'explained variance never exceeds 1'
  )
  checks.require(
      config.advantage.estimator not in group_checks.GROUP_ESTIMATORS,
      name,
      value,
      f'advantage.estimator={config.advantage.estimator} has no critic to warm'
      ' up: set it to None',
  )
  checks.require(
      critic.warmup_steps > 0,
      name,
      value,
      'there is no warm-up that could reach it: set critic.warmup_steps above'
      ' 0',
  )
  checks.require(
      critic.holdout_fraction > 0,
      name,
      value,
      'it is measured on tasks that no critic update sees: set'
      ' critic.holdout_fraction above 0',
  )
  checks.require(
      critic.values == 'model',
      name,
      value,
      f'critic.values={critic.values} predicts nothing: set'
      ' critic.values=model',
  )
  checks.require(
      critic.warmup_max_steps is None
      or critic.warmup_max_steps >= critic.warmup_steps,
      'critic.warmup_max_steps',
      critic.warmup_max_steps,
      'it is below critic.warmup_steps'
      f' ({critic.warmup_steps}): make it at least that',
  )
