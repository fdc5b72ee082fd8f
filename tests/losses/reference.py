"""The actor's objective in plain loops and float64, for comparison.

Written from the formulas, one token after the other; nothing is shared with
the package.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Token:
  """A trained or masked token of a minibatch."""

  segment: int
  rollout: int
  task: int
  mask: bool
  logp: float
  base: float
  behaviour: float
  advantage: float


def exp(x: float) -> float:
  """exp of a log ratio, which stops at 20 on either side."""
  return math.exp(min(max(x, -20.0), 20.0))


def weights(
    tokens: Sequence[Token], counts: Sequence[bool], mode: str, constant: float
) -> list[float]:
  """4.2 over the tokens that count; 0 for the others."""
  used = [t for t, c in zip(tokens, counts) if c]
  out = []
  for token, is_used in zip(tokens, counts):
    if not is_used:
      out.append(0.0)
      continue
    same = lambda name: sum(
        getattr(t, name) == getattr(token, name) for t in used
    )
    kinds = lambda name: len({getattr(t, name) for t in used})
    members = len({t.rollout for t in used if t.task == token.task})
    divisor = {
        'token': lambda: len(used),
        'segment_mean': lambda: kinds('segment') * same('segment'),
        'rollout_mean': lambda: kinds('rollout') * same('rollout'),
        'task_mean': lambda: kinds('task') * same('task'),
        'task_rollout_mean': lambda: (
            kinds('task') * members * same('rollout')
        ),
        'constant': lambda: kinds('rollout') * constant,
    }[mode]()
    out.append(1.0 / divisor)
  return out


def rollout_mean(
    tokens: Sequence[Token], token: Token, value: Callable[[Token], float]
) -> float:
  """Mean over the trained tokens of a token's rollout."""
  found = [value(t) for t in tokens if t.mask and t.rollout == token.rollout]
  return sum(found) / len(found)


def correction(tokens: Sequence[Token], token: Token, policy) -> float:
  """L13's weight, 0 where it gates."""
  gap = lambda t: t.base - t.behaviour
  kind = policy.correction
  if kind == 'none':
    return 1.0
  x = rollout_mean(tokens, token, gap) if kind == 'seq_mis' else gap(token)
  rho = exp(x)
  if kind == 'tis':
    return min(rho, policy.is_high)
  if not policy.is_low <= rho <= policy.is_high:
    return 0.0
  return rho if kind == 'icepop' else 1.0


def objective(tokens: Sequence[Token], settings) -> tuple[float, list[float]]:
  """The policy loss of a minibatch and its derivative by each logp."""
  policy, loss = settings.policy, settings.loss
  mask = [t.mask for t in tokens]
  fix = [correction(tokens, t, policy) if t.mask else 0.0 for t in tokens]
  kept = [m and f > 0 for m, f in zip(mask, fix)]
  if policy.loss == 'dis':
    low, high = 1 - settings.dis.eps_low, 1 + settings.dis.eps_high
    kept = [
        k and low < exp(t.logp - t.behaviour) < high
        for k, t in zip(kept, tokens)
    ]
  counts = kept if loss.renormalise_gated else mask
  weight = weights(tokens, counts, loss.aggregation, loss.constant or 0.0)
  pull = [w * f if k else 0.0 for w, f, k in zip(weight, fix, kept)]
  total, slopes = 0.0, [0.0] * len(tokens)
  for i, token in enumerate(tokens):
    if not pull[i]:
      continue
    a = token.advantage
    if policy.loss in ('dis', 'cispo'):
      base = token.behaviour if policy.loss == 'dis' else token.base
      factor = exp(token.logp - base)
      if policy.loss == 'cispo':
        factor = min(factor, 1 + settings.cispo.eps_high)
      total += pull[i] * -factor * a * token.logp
      slopes[i] += pull[i] * -factor * a
      continue
    bounds = settings.gspo if policy.loss == 'gspo' else settings.clip
    x = token.logp - token.base
    if policy.loss == 'gspo':
      x = rollout_mean(tokens, token, lambda t: t.logp - t.base)
    s = exp(x)
    clipped = min(max(s, 1 - bounds.eps_low), 1 + bounds.eps_high)
    value = max(-s * a, -clipped * a)
    is_clipped = (a > 0 and s > 1 + bounds.eps_high) or (
        a < 0 and s < 1 - bounds.eps_low
    )
    total += pull[i] * value
    slope = 0.0 if is_clipped or abs(x) > 20 else pull[i] * -s * a
    if policy.loss != 'gspo':
      slopes[i] += slope
      continue
    members = [
        j for j, t in enumerate(tokens) if t.mask and t.rollout == token.rollout
    ]
    for j in members:
      slopes[j] += slope / len(members)
  return total, slopes
