"""AdamW with a schedule, and the step that refuses non-finite gradients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl_tpu.config import schema
from rl_tpu.learner import freezing


def make_schedule(config: schema.OptimizerConfig) -> optax.Schedule:
  """Linear warm-up to the peak, then constant, linear or cosine decay."""
  peak, end = config.learning_rate, config.learning_rate * config.end_fraction
  if config.schedule == 'constant':
    after = optax.constant_schedule(peak)
  elif config.schedule == 'linear':
    after = optax.linear_schedule(peak, end, max(config.decay_steps, 1))
  else:
    after = optax.cosine_decay_schedule(
        peak, max(config.decay_steps, 1), alpha=config.end_fraction
    )
  if not config.warmup_steps:
    return after
  # Step n of a warm-up over w steps uses (n + 1) / w of the peak, so that the
  # first step already moves.
  rise = optax.linear_schedule(
      peak / config.warmup_steps, peak, max(config.warmup_steps - 1, 1)
  )
  return optax.join_schedules([rise, after], [config.warmup_steps])


def make_optimizer(
    config: schema.OptimizerConfig, *, freeze: Sequence[str] = ()
) -> optax.GradientTransformation:
  """The optax chain of one network: clip the global norm, then AdamW.

  Args:
    config: rates and moments.
    freeze: patterns of the names of parameters that stay as they are and get
      no moments (C10).
  """
  chain = []
  if config.clip_norm is not None:
    chain.append(optax.clip_by_global_norm(config.clip_norm))
  chain.append(
      optax.adamw(
          make_schedule(config),
          b1=config.b1,
          b2=config.b2,
          eps=config.eps,
          weight_decay=config.weight_decay,
      )
  )
  trained = optax.chain(*chain)
  if not freeze:
    return trained
  labels = lambda params: jax.tree.map(
      lambda frozen: 'frozen' if frozen else 'trained',
      freezing.mask(params, freeze),
  )
  return optax.partition(
      {'trained': trained, 'frozen': optax.set_to_zero()}, labels
  )


class StepReport(NamedTuple):
  """What one optimizer step tells the host.

  Attributes:
    finite: loss and gradient were finite and the step was taken (L18).
    empty: nothing was trained: all gradients are exactly 0 (K16).
    gradient_norm: global norm before clipping.
    clipped: the norm was above the limit, so every element was scaled (L21).
    flushed: gradient elements too small for a normal float32: devices that
      flush them train as if they were 0 (L21).
    nonfinite: by parameter, whether the norm of its gradient is not finite.
  """

  finite: jax.Array
  empty: jax.Array
  gradient_norm: jax.Array
  clipped: jax.Array
  flushed: jax.Array
  nonfinite: Any


def apply_gradients(
    optimizer: optax.GradientTransformation,
    params: Any,
    state: Any,
    gradients: Any,
    weight_sum: jax.Array,
    *,
    loss: jax.Array | float = 0.0,
    clip_norm: float | None = None,
) -> tuple[Any, Any, StepReport]:
  """Takes one step, or none where a gradient is not finite or nothing trained.

  The choice is a select on one flag inside the step, so the buffers can be
  donated and the host need not look first (L18).

  Args:
    optimizer: the chain.
    params: parameters.
    state: optimizer state.
    gradients: the minibatch's summed gradient.
    weight_sum: sum of the aggregation weights; 0 means nothing is trained.
    loss: of the minibatch; not finite means no step.
    clip_norm: the chain's limit, for the report.
  """
  norm = optax.global_norm(gradients)
  finite = jnp.isfinite(norm) & jnp.isfinite(loss)
  empty = weight_sum <= 0
  take = finite & ~empty
  # The rejected branch must not meet NaN inside Adam either: a select of two
  # results is enough, since nothing is summed over them.
  updates, new_state = optimizer.update(gradients, state, params)
  new_params = optax.apply_updates(params, updates)
  keep = lambda new, old: jax.tree.map(
      lambda n, o: jnp.where(take, n, o), new, old
  )
  report = StepReport(
      finite=finite,
      empty=empty,
      gradient_norm=norm,
      clipped=jnp.asarray(clip_norm is not None) & (norm > (clip_norm or 0.0)),
      flushed=sum(_subnormal(leaf) for leaf in jax.tree.leaves(gradients)),
      # The sums that the global norm is made of.
      nonfinite=jax.tree.map(
          lambda leaf: ~jnp.isfinite(jnp.sum(jnp.square(leaf))), gradients
      ),
  )
  return keep(new_params, params), keep(new_state, state), report


def _subnormal(x: jax.Array) -> jax.Array:
  """Number of elements between 0 and the smallest normal float32.

  Read from the bits: a device that flushes them compares them equal to 0.
  """
  bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
  bits = bits & 0x7FFFFFFF
  is_subnormal = (bits > 0) & (bits < 0x00800000)
  return jnp.sum(is_subnormal, dtype=jnp.float32)
