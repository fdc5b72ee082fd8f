"""What one update compiles, as `Updater` calls it, from abstract shapes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import state as state_lib
from rl_tpu.losses import kl as kl_lib
from rl_tpu.sharding import rules
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import programs as programs_lib

# Columns of a microbatch, float32 [B, T].
_COLUMNS = (
    'advantage_BT',
    'return_BT',
    'value_BT',
    'base_logp_BT',
    'reference_logp_BT',
    'policy_weight_BT',
    'critic_weight_BT',
)


def abstract_state(
    learner: learner_lib.Learner, actor_params: Any, *, with_critic: bool
) -> state_lib.TrainState:
  """The train state that `init_state` would make, nothing allocated.

  Args:
    learner: its shardings.
    actor_params: shapes of the actor's parameters.
    with_critic: whether a critic is trained.
  """
  start = functools.partial(learner.start_params, with_critic=with_critic)
  parts = jax.eval_shape(start, actor_params)

  def trainable(params, optimizer):
    if params is None:
      return None
    moments = rules.abstract(
        jax.eval_shape(optimizer.init, params),
        learner.optimizer_shardings(params, optimizer),
    )
    placed = rules.abstract(params, learner.param_shardings(params))
    return state_lib.Trainable(placed, moments)

  base = parts.base
  if base is not None:
    base = rules.abstract(base, learner.param_shardings(base))
  return state_lib.TrainState(
      trainable(parts.actor, learner.actor_optimizer),
      trainable(parts.critic, learner.critic_optimizer),
      base,
  )


def of_update(
    learner: learner_lib.Learner,
    state: state_lib.TrainState,
    sizes: batch_lib.Sizes,
    *,
    config: schema.ExperimentConfig,
    reference: Any | None,
) -> list[programs_lib.Program]:
  """The programs of scoring, estimation and both updates.

  Args:
    learner: the run's own.
    state: from `abstract_state`.
    sizes: of a batch.
    config: the experiment.
    reference: abstract frozen parameters, or None.
  """
  batching = config.batching
  per = batching.rows_per_microbatch
  parts = sizes.rows // per
  segments = batch_lib.abstract(sizes)
  micro = _on_rows(
      learner, batch_lib.abstract(sizes._replace(rows=per)).rows
  )
  functions = learner.functions
  score = {'tokens': per * sizes.length, 'rows': sizes.length, 'calls': parts}
  out = []

  def scores(name, function, network, params):
    holds = {network: params, 'batch': micro}
    out.append(
        programs_lib.Program(name, function, (params, micro), holds, **score)
    )

  if state.critic_params is not None and config.critic.values == 'model':
    scores('values', functions.values, 'critic', state.critic_params)
  if config.policy.baseline == 'decoupled':
    scores('old log-probs', functions.logp, 'actor', state.policy_params)
  if reference is not None:
    scores(
        'reference log-probs',
        functions.reference_logp,
        'reference',
        reference,
    )
  out.append(_estimate(learner, segments, sizes, per, config))
  part = _minibatch(learner, micro, segments, sizes, per, config)
  updates = {
      'tokens': per * sizes.length,
      'rows': sizes.length,
      'backward': True,
  }
  if state.critic is not None:
    repeats = config.critic.updates_per_actor_update
    out += _updates(
        learner, 'critic', functions.critic, state.critic, state.critic_base,
        part, calls=(parts * repeats, batching.minibatches * repeats),
        **updates,
    )
  if functions.plan is not None:
    part = part._replace(plan=_plan(learner, part, parts))
  out += _updates(
      learner, 'actor', functions.actor, state.actor, state.base, part,
      calls=(parts * batching.epochs, batching.minibatches * batching.epochs),
      **updates,
  )
  return out


def _updates(
    learner, name, functions, trainable, base, part, *, calls, **described
):
  """A network's gradient of a microbatch, and its optimizer step."""
  gradient, step = functions
  params, moments = trainable
  start = jax.eval_shape(gradient.start, params, base, part)
  so_far = (
      rules.abstract(start[0], learner.param_shardings(params)),
      *_everywhere(learner, start[1:]),
  )
  held = {name: params, f'{name}_gradient': so_far[0], 'batch': part}
  if base is not None:
    held['base'] = base
  yield programs_lib.Program(
      f'{name} gradient',
      gradient.add,
      (params, base, part, so_far),
      held,
      calls=calls[0],
      **described,
  )
  scalar = _everywhere(learner, jax.ShapeDtypeStruct((), jnp.float32))
  yield programs_lib.Program(
      f'{name} step',
      step,
      (params, moments, so_far[0], scalar, scalar),
      {
          name: params,
          f'{name}_optimizer': moments,
          f'{name}_gradient': so_far[0],
      },
      calls=calls[1],
  )


def _estimate(learner, segments, sizes, per, config) -> programs_lib.Program:
  head = jax.ShapeDtypeStruct((per, sizes.length), jnp.float32)
  heads = tuple(
      _on_rows(learner, head) for _ in range(sizes.rows // per)
  )
  kl_BT = None
  if config.kl.in_ == 'reward':
    kl_BT = jax.ShapeDtypeStruct((sizes.rows, sizes.length), jnp.float32)
  return programs_lib.Program(
      'advantages',
      learner.functions.estimate,
      (segments.joins, segments.rows.position_BT, heads, kl_BT),
      {'joins': segments.joins},
  )


def _minibatch(learner, rows, segments, sizes, per, config):
  column = _on_rows(
      learner, jax.ShapeDtypeStruct((per, sizes.length), jnp.float32)
  )
  one = batch_lib.abstract(sizes._replace(rows=per))
  coef_Y = kl_lib.coefficients(config.kl, 0)
  return batch_lib.Minibatch(
      rows=rows,
      **{name: column for name in _COLUMNS},
      strata=_on_rows(learner, one.strata),
      origin=_everywhere(learner, segments.origin),
      kl_coef_Y=_everywhere(
          learner, jax.ShapeDtypeStruct(coef_Y.shape, coef_Y.dtype)
      ),
  )


def _plan(learner, part, parts: int):
  """What the first of two passes leaves for a microbatch (L20)."""
  logps = None
  if learner.reads_policy:
    logps = (part.base_logp_BT,) * parts
  plans = jax.eval_shape(learner.functions.plan, (part,) * parts, logps)
  return _on_rows(learner, plans[0])


def _on_rows(learner: learner_lib.Learner, tree: Any) -> Any:
  sharding = rules.rows_sharding(learner.mesh)
  return rules.abstract(tree, jax.tree.map(lambda _: sharding, tree))


def _everywhere(learner: learner_lib.Learner, tree: Any) -> Any:
  sharding = rules.replicated(learner.mesh)
  return rules.abstract(tree, jax.tree.map(lambda _: sharding, tree))
