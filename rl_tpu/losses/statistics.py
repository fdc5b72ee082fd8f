"""Statistics of the trained tokens of a microbatch: sums, counts and tables.

A statistic is a (total, count) pair; a name that ends in `_max` is a plain
maximum, one that ends in `_table` an array of sums. All of them add up over
microbatches and devices, and nothing per token leaves the device.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.config import schema
from rl_tpu.losses import by_id
from rl_tpu.losses import kl as kl_lib
from rl_tpu.losses import policy as policy_lib
from rl_tpu.losses import ratio
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import sums
from rl_tpu.types import token_types

Stats = dict[str, Any]

# The rows of `strata_table`: token types, tenths, powers of two (L19).
POSITIONS = 10
LENGTHS = 24
# Its columns.
STRATA_FIGURES = (
    'count',
    'entropy',
    'approx_kl_k1',
    'approx_kl_k3',
    'ratio',
    'ratio_squared',
    'clip_fraction',
    'gated_fraction',
    'advantage',
    'reference_kl_k1',
    'reference_kl_k3',
)
# The columns of `rollout_table`.
ROLLOUT_FIGURES = (
    'count',
    'policy_loss',
    'reference_kl_k1',
    'reference_kl_k3',
    'proxy',
    'over_limit',
)
# Bins of the log ratio, finer towards 0: |x| from 1e-4 to 20 in equal steps
# of log(1 + |x| / 1e-4), about 5 % each.
RATIO_BINS = 512
_FINEST = 1e-4
_SPAN = float(np.log1p(ratio.LIMIT / _FINEST))


class Tokens(NamedTuple):
  """What is known of the trained tokens once the loss is computed.

  Attributes:
    mask_BT: tokens of M (4.2), gated ones included.
    logp_BT: under the trained parameters.
    entropy_BT: of the distribution they were drawn from.
    terms: loss, ratio and flags.
    gated_BT: dropped by any gate (L10).
    proxy_BT: |d loss / d logp|, the weight included (L18).
  """

  mask_BT: jax.Array
  logp_BT: jax.Array
  entropy_BT: jax.Array
  terms: policy_lib.PolicyTerms
  gated_BT: jax.Array
  proxy_BT: jax.Array


def of_actor(
    tokens: Tokens,
    minibatch: batch_lib.Minibatch,
    *,
    limits: schema.LimitsConfig,
    has_reference: bool,
) -> Stats:
  """Shares, means, extremes and tables of a microbatch."""
  mask_BT, terms = tokens.mask_BT, tokens.terms
  token = lambda value_BT: sums.masked_sum(value_BT, mask_BT)
  x_BT = ratio.masked_difference(
      tokens.logp_BT, minibatch.base_logp_BT, mask_BT
  )
  gap_BT = ratio.masked_difference(
      tokens.logp_BT, minibatch.rows.behaviour_logp_BT, mask_BT
  )
  columns = _columns(tokens, minibatch, x_BT, has_reference)
  over = {
      'advantage': _over(jnp.abs(columns['advantage']), limits.advantage),
      'ratio': _over(terms.ratio_BT, limits.ratio),
      'proxy': _over(tokens.proxy_BT, limits.proxy),
  }
  columns['over_limit'] = over['advantage'] | over['ratio'] | over['proxy']
  columns['policy_loss'] = terms.loss_BT
  columns['proxy'] = tokens.proxy_BT
  stats = {
      'clip_high': token(terms.clip_high_BT),
      'clip_low': token(terms.clip_low_BT),
      'clip_fraction': token(columns['clip_fraction']),
      'dual_clip': token(terms.dual_BT),
      'gated_fraction': token(tokens.gated_BT),
      'ratio_saturated': token(terms.saturated_BT),
      'ratio': token(terms.ratio_BT),
      'ratio_squared': token(jnp.square(terms.ratio_BT)),
      'ratio_max': _largest(jnp.where(mask_BT, terms.ratio_BT, 0.0)),
      'ratio_table': _histogram(x_BT, mask_BT),
      'ratio_advantage': token(terms.ratio_BT * columns['advantage']),
      'approx_kl_k1': token(columns['approx_kl_k1']),
      'approx_kl_k3': token(columns['approx_kl_k3']),
      'behaviour_gap_abs': token(jnp.abs(gap_BT)),
      'behaviour_gap_max': _largest(jnp.abs(gap_BT)),
      'entropy': token(tokens.entropy_BT),
      'advantage': token(columns['advantage']),
      'proxy': token(tokens.proxy_BT),
      **{f'over_{name}': token(flag_BT) for name, flag_BT in over.items()},
  }
  if has_reference:
    for name in ('reference_kl_k1', 'reference_kl_k3'):
      stats[name] = token(columns[name])
  if minibatch.strata is not None:
    stats['strata_table'] = _strata(columns, mask_BT, minibatch.strata)
  if minibatch.origin is not None:
    stats['rollout_table'] = _rollouts(columns, mask_BT, minibatch)
  return stats


def _columns(tokens, minibatch, x_BT, has_reference) -> dict[str, jax.Array]:
  mask_BT, terms = tokens.mask_BT, tokens.terms
  zero_BT = jnp.zeros_like(x_BT)
  reference_BT = zero_BT
  if has_reference:
    reference_BT = ratio.masked_difference(
        tokens.logp_BT, minibatch.reference_logp_BT, mask_BT
    )
  estimate = lambda name: kl_lib.estimate(reference_BT, estimator=name)
  return {
      'count': jnp.ones_like(x_BT),
      'entropy': tokens.entropy_BT,
      # KL(base || theta) is estimated on tokens of the base policy: k1 and k3
      # of log base - log theta (O1).
      'approx_kl_k1': -x_BT,
      'approx_kl_k3': ratio.bounded_expm1(x_BT) - x_BT,
      'ratio': terms.ratio_BT,
      'ratio_squared': jnp.square(terms.ratio_BT),
      'clip_fraction': terms.clip_high_BT | terms.clip_low_BT,
      'gated_fraction': tokens.gated_BT,
      'advantage': jnp.where(mask_BT, minibatch.advantage_BT, 0.0),
      'reference_kl_k1': estimate('k1'),
      'reference_kl_k3': estimate('k3'),
  }


def _over(value_BT: jax.Array, limit: float | None) -> jax.Array:
  if limit is None:
    return jnp.zeros(value_BT.shape, bool)
  return value_BT > limit


def _largest(value_BT: jax.Array) -> jax.Array:
  """The maximum of what is not negative; 0 of no rows (K16)."""
  return jnp.max(value_BT, initial=0.0)


def _strata(columns, mask_BT, strata: batch_lib.Strata) -> jax.Array:
  """Sums of every figure by type, tenth and length, [strata, figures]."""
  member = jnp.concatenate(
      [
          jax.nn.one_hot(ids_BT, size, axis=0, dtype=jnp.float32)
          for ids_BT, size in (
              (strata.type_BT, len(token_types.NAMES)),
              (strata.position_BT, POSITIONS),
              (jnp.minimum(strata.length_BT, LENGTHS - 1), LENGTHS),
          )
      ]
  )
  figures = jnp.stack([
      jnp.where(mask_BT, columns[name], 0.0).astype(jnp.float32)
      for name in STRATA_FIGURES
  ])
  return jnp.einsum('sbt,fbt->sf', member, figures, precision='highest')


def _rollouts(columns, mask_BT, minibatch) -> jax.Array:
  """Sums of every figure by rollout, [R, figures]."""
  size = minibatch.origin.rollout_N.shape[0]
  return jnp.stack(
      [
          by_id.rollout_sum(
              by_id.segment_sum(
                  columns[name], mask_BT, minibatch.rows.segment_BT, size=size
              ),
              minibatch.origin,
          )
          for name in ROLLOUT_FIGURES
      ],
      axis=1,
  )


def _histogram(x_BT: jax.Array, mask_BT: jax.Array) -> jax.Array:
  """Counts of the log ratio in RATIO_BINS bins."""
  place_BT = jnp.sign(x_BT) * jnp.log1p(jnp.abs(x_BT) / _FINEST) / _SPAN
  bin_BT = jnp.floor(0.5 * (place_BT + 1.0) * RATIO_BINS)
  bin_BT = jnp.clip(bin_BT, 0, RATIO_BINS - 1).astype(jnp.int32)
  return jax.ops.segment_sum(
      mask_BT.astype(jnp.float32).reshape(-1),
      bin_BT.reshape(-1),
      num_segments=RATIO_BINS,
  )


def ratio_quantile(counts: np.ndarray, share: float) -> float | None:
  """A quantile of the token ratio from its histogram; None of no tokens.

  Between the edges of a bin it is interpolated, so it is off by less than a
  bin: 5 % of the log ratio.
  """
  counts = np.asarray(counts, np.float64)
  total = counts.sum()
  if not total:
    return None
  below = np.concatenate([[0.0], np.cumsum(counts)])
  wanted = share * total
  b = int(np.clip(np.searchsorted(below, wanted) - 1, 0, RATIO_BINS - 1))
  inside = (wanted - below[b]) / max(counts[b], 1.0)
  place = 2.0 * (b + np.clip(inside, 0.0, 1.0)) / RATIO_BINS - 1.0
  x = np.sign(place) * _FINEST * np.expm1(abs(place) * _SPAN)
  return float(np.exp(x))


def merge(left: Stats, right: Stats) -> Stats:
  """Adds totals, counts and tables; maxima stay maxima."""
  merged = {}
  for name, value in left.items():
    if name.endswith('_max'):
      merged[name] = jnp.maximum(value, right[name])
    elif name.endswith('_table'):
      merged[name] = value + right[name]
    else:
      merged[name] = sums.TokenSum(
          value[0] + right[name][0], value[1] + right[name][1]
      )
  return merged


def values(stats: Stats) -> dict[str, float]:
  """Means of the sums, for logging; 0 where nothing was counted.

  `ratio_saturated_count` is the count itself (L21), like those of the tokens
  over a limit (L18), and `ess_share` the effective sample size of the token
  ratios over their number (O1). Tables are left out.
  """
  found = {}
  for name, value in stats.items():
    if name.endswith('_table'):
      continue
    if name.endswith('_max'):
      found[name] = float(value)
      continue
    total, count = (float(np.asarray(x)) for x in (value[0], value[1]))
    found[name] = total / count if count else 0.0
    plain = name.rsplit('/', 1)[-1]
    if plain == 'ratio_saturated' or plain.startswith(('over_', 'nonfinite_')):
      found[f'{name}_count'] = total
  if found.get('ratio_squared'):
    found['ess_share'] = found['ratio'] ** 2 / found['ratio_squared']
  if 'ratio_table' in stats:
    for name, share in (('p50', 0.5), ('p99', 0.99)):
      quantile = ratio_quantile(stats['ratio_table'], share)
      if quantile is not None:
        found[f'ratio_{name}'] = quantile
  return found


def strata_values(table: np.ndarray) -> dict[tuple[str, str], dict[str, float]]:
  """Means by (division, stratum): type, position and length (L19).

  Strata without a token are left out. A length is named by its lower bound.
  `ess_share` is the effective sample size of the stratum's ratios.
  """
  names = [('type', name) for name in token_types.NAMES]
  names += [('position', str(b)) for b in range(POSITIONS)]
  names += [('length', str(1 << b)) for b in range(LENGTHS)]
  found = {}
  for name, row in zip(names, np.asarray(table, np.float64)):
    count = row[0]
    if count:
      found[name] = {
          figure: float(total / count)
          for figure, total in zip(STRATA_FIGURES[1:], row[1:])
      }
      found[name]['count'] = float(count)
      # (sum w)^2 / (n sum w^2), as over all tokens (O1).
      squared = found[name].pop('ratio_squared')
      if squared:
        found[name]['ess_share'] = found[name]['ratio'] ** 2 / squared
  return found
