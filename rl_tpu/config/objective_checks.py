"""Checks of the objective: ratio, aggregation, KL, critic head and sharing."""

from collections.abc import Mapping

from rl_tpu.config import checks
from rl_tpu.config import group_checks
from rl_tpu.config import schema
from rl_tpu.types import token_types

AGGREGATIONS = (
    'token',
    'segment_mean',
    'rollout_mean',
    'task_mean',
    'task_rollout_mean',
    'constant',
)
# Aggregations that weigh whole rollouts, as a ratio per rollout does.
_OF_ROLLOUTS = ('rollout_mean', 'task_mean', 'task_rollout_mean')


def check(config: schema.ExperimentConfig) -> None:
  """Refuses settings of sections 4 and 6 that cannot work together.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  _check_bounds(config)
  _check_policy(config)
  _check_aggregation(config)
  _check_renormalise(config)
  _check_kl(config)
  _check_limits(config)
  _check_head(config.critic)
  _check_sharing(config)


def _check_bounds(config: schema.ExperimentConfig) -> None:
  """The ranges of all ratios."""
  for name in ('clip', 'dis', 'gspo'):
    low = getattr(config, name).eps_low
    checks.require(
        0 < low <= 1, f'{name}.eps_low', low, 'it must be in (0, 1]'
    )
  for name in ('clip', 'dis', 'gspo', 'cispo'):
    checks.positive(f'{name}.eps_high', getattr(config, name).eps_high)
  dual = config.clip.dual
  checks.require(
      dual is None or dual > 1,
      'clip.dual',
      dual,
      'it must be above 1, or None for off',
  )
  checks.require(
      dual is None or config.policy.loss == 'ppo_clip',
      'clip.dual',
      dual,
      f'policy.loss={config.policy.loss} has no dual clip: set it to None, or'
      ' policy.loss=ppo_clip',
  )


def _check_policy(config: schema.ExperimentConfig) -> None:
  """L13 and L14."""
  policy = config.policy
  checks.one_of(
      'policy.loss', policy.loss, 'ppo_clip', 'dis', 'gspo', 'cispo'
  )
  checks.one_of('policy.baseline', policy.baseline, 'behavior', 'decoupled')
  checks.one_of(
      'policy.correction',
      policy.correction,
      'none',
      'tis',
      'icepop',
      'mis',
      'seq_mis',
  )
  checks.positive('policy.is_low', policy.is_low)
  checks.require(
      policy.is_low < policy.is_high,
      'policy.is_low',
      policy.is_low,
      f'it must be below policy.is_high ({policy.is_high})',
  )
  if policy.loss == 'dis':
    checks.require(
        policy.baseline == 'behavior',
        'policy.baseline',
        policy.baseline,
        'policy.loss=dis takes the ratio to the sampler itself (L14): set'
        ' policy.baseline=behavior',
    )
    checks.require(
        policy.correction == 'none',
        'policy.correction',
        policy.correction,
        'policy.loss=dis corrects by its own range (L14): set'
        ' policy.correction=none',
    )
  checks.require(
      policy.correction == 'none' or policy.baseline == 'decoupled',
      'policy.correction',
      policy.correction,
      'in behavior mode the ratio already contains it (L13): set'
      ' policy.correction=none, or policy.baseline=decoupled',
  )


def _check_aggregation(config: schema.ExperimentConfig) -> None:
  loss = config.loss
  checks.one_of('loss.aggregation', loss.aggregation, *AGGREGATIONS)
  checks.positive('loss.constant', loss.constant, optional=True)
  is_constant = loss.aggregation == 'constant'
  checks.require(
      not is_constant or loss.constant is not None,
      'loss.constant',
      loss.constant,
      'loss.aggregation=constant divides by it: set the fixed length in tokens',
  )
  checks.require(
      is_constant or loss.constant is None,
      'loss.constant',
      loss.constant,
      f'loss.aggregation={loss.aggregation} does not read it: set it to None,'
      ' or loss.aggregation=constant',
  )
  checks.require(
      config.policy.loss != 'gspo' or loss.aggregation in _OF_ROLLOUTS,
      'loss.aggregation',
      loss.aggregation,
      "policy.loss=gspo has one ratio a rollout, so a rollout's length must not"
      ' weigh it (L15): set loss.aggregation=rollout_mean',
  )
  _check_types('loss.entropy_by_type', loss.entropy_by_type)


def _check_renormalise(config: schema.ExperimentConfig) -> None:
  """L10: there must be a gate."""
  gates = (
      config.policy.loss == 'dis',
      config.policy.correction in ('icepop', 'mis', 'seq_mis'),
      config.staleness.over == 'mask',
  )
  checks.require(
      not config.loss.renormalise_gated or any(gates),
      'loss.renormalise_gated',
      config.loss.renormalise_gated,
      'nothing is gated: set it to false, or use policy.loss=dis, a'
      ' policy.correction that drops tokens, or staleness.over=mask',
  )


def _check_types(name: str, values: Mapping[str, float]) -> None:
  for key in values:
    checks.one_of(name, key, *token_types.NAMES)


def _check_kl(config: schema.ExperimentConfig) -> None:
  """G8 and L6."""
  kl = config.kl
  checks.one_of('kl.in', kl.in_, 'none', 'reward', 'loss')
  if kl.estimator:
    checks.one_of('kl.estimator', kl.estimator, 'k1', 'k2', 'k3')
  _check_schedule('kl.coef', kl.coef)
  _check_types('kl.by_type', kl.by_type)
  for name, factor in kl.by_type.items():
    checks.at_least(f'kl.by_type.{name}', factor, 0)
  for name, value in (('coef', kl.coef), ('by_type', dict(kl.by_type))):
    checks.require(
        kl.in_ != 'none' or not value,
        f'kl.{name}',
        value,
        'it has no effect while kl.in=none: set kl.in to reward or loss',
    )
  checks.require(
      not kl.importance or kl.in_ == 'loss',
      'kl.importance',
      kl.importance,
      'it weights the term in the loss: set kl.in=loss or kl.importance=false',
  )
  if kl.in_ == 'reward':
    checks.require(
        kl.estimator in ('', 'k1'),
        'kl.estimator',
        kl.estimator,
        'kl.in=reward takes k1 only (G8)',
    )
    estimator = config.advantage.estimator
    checks.require(
        estimator not in group_checks.GROUP_ESTIMATORS,
        'kl.in',
        kl.in_,
        f'advantage.estimator={estimator} has no per-token reward (G8): set'
        ' kl.in=loss or kl.in=none',
    )
  if kl.in_ == 'loss':
    checks.require(
        kl.estimator != 'k1' or kl.importance,
        'kl.estimator',
        kl.estimator,
        'k1 in the loss has no mean gradient (L6): use k2 or k3, or set'
        ' kl.importance=true',
    )


def _check_schedule(
    name: str, coef: schema.objective_schema.Schedule
) -> None:
  """A number of at least 0, or points of ascending updates."""
  if not isinstance(coef, tuple):
    checks.at_least(name, coef, 0)
    return
  checks.require(
      coef and all(len(point) == 2 for point in coef),
      name,
      coef,
      'write points ((update, number), ...), for example'
      ' ((0, 0.1), (100, 0.0))',
  )
  updates = [point[0] for point in coef]
  checks.require(
      updates == sorted(updates),
      name,
      coef,
      'put the points in the order of their updates',
  )
  for point in coef:
    checks.at_least(name, point[1], 0)


def _check_limits(config: schema.ExperimentConfig) -> None:
  for name in ('advantage', 'ratio', 'proxy'):
    value = getattr(config.limits, name)
    checks.positive(f'limits.{name}', value, optional=True)
  checks.at_least('log.source_grad_every', config.log.source_grad_every, 0)
  log = config.log
  checks.at_least('log.profile_first', log.profile_first, 0)
  checks.require(
      log.profile_first <= log.profile_last and (
          log.profile_first or not log.profile_last
      ),
      'log.profile_last',
      log.profile_last,
      f'it goes with log.profile_first = {log.profile_first}: set both, the'
      ' last no less than the first',
  )


def _check_head(critic: schema.CriticConfig) -> None:
  """C11."""
  checks.one_of('critic.head', critic.head, 'mse', 'hl_gauss')
  if critic.head == 'mse':
    return
  checks.require(
      critic.value_clip is None,
      'critic.value_clip',
      critic.value_clip,
      'critic.head=hl_gauss is a classifier, whose values are not clipped'
      ' (C11): set it to None, or critic.head=mse',
  )
  checks.at_least('critic.bins', critic.bins, 2)
  checks.positive('critic.sigma', critic.sigma)
  checks.require(
      critic.vmin < critic.vmax,
      'critic.vmin',
      critic.vmin,
      f'it must be below critic.vmax ({critic.vmax})',
  )
  checks.require(
      critic.vmin <= critic.head_bias <= critic.vmax,
      'critic.head_bias',
      critic.head_bias,
      'the bins cannot say it: put it between critic.vmin'
      f' ({critic.vmin}) and critic.vmax ({critic.vmax})',
  )


def _check_sharing(config: schema.ExperimentConfig) -> None:
  """C10."""
  critic = config.critic
  estimator = config.advantage.estimator
  checks.one_of(
      'critic.sharing', critic.sharing, 'separate', 'shared_backbone'
  )
  checks.positive('loss.value_coef', config.loss.value_coef)
  for name, value in (
      ('freeze', critic.freeze),
      ('sharing', critic.sharing != 'separate'),
  ):
    checks.require(
        not value or estimator not in group_checks.GROUP_ESTIMATORS,
        f'critic.{name}',
        getattr(critic, name),
        f'advantage.estimator={estimator} has no critic: leave it at its'
        ' default',
    )
  if critic.sharing == 'separate':
    checks.require(
        config.loss.value_coef == 1.0,
        'loss.value_coef',
        config.loss.value_coef,
        'separate networks are never added up (L4): set it to 1.0, or'
        ' critic.sharing=shared_backbone',
    )
    return
  for name, off, why in (
      ('warmup_steps', 0, 'it would move the policy that has to stand still'),
      ('updates_per_actor_update', 1, 'its critic takes no steps of its own'),
      ('freeze', (), 'it would freeze the policy too'),
  ):
    value = getattr(critic, name)
    checks.require(
        value == off,
        f'critic.{name}',
        value,
        f'critic.sharing=shared_backbone is one network, and {why}: set it to'
        f' {off}, or critic.sharing=separate',
    )
