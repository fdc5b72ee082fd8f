"""Settings of the actor's objective (section 4): `schema.ClipConfig`."""

import dataclasses
from collections.abc import Mapping

# A number, or ((update, number), ...): linear in between, constant outside.
Schedule = float | tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class ClipConfig:
  """Bounds of the ratio with policy.loss = ppo_clip (L2, L3).

  Attributes:
    eps_low: the ratio's floor is 1 - eps_low.
    eps_high: its ceiling is 1 + eps_high.
    dual: c of the dual clip, above 1; None is off.
  """

  eps_low: float = 0.2
  eps_high: float = 0.2
  dual: float | None = None


@dataclasses.dataclass(frozen=True)
class DisConfig:
  """Range outside of which policy.loss = dis drops a token (L14).

  The defaults are those reported for agent tasks; 0.3 and 5.0 for maths.
  """

  eps_low: float = 0.8
  eps_high: float = 3.0


@dataclasses.dataclass(frozen=True)
class GspoConfig:
  """Bounds of the rollout's ratio with policy.loss = gspo (L15)."""

  eps_low: float = 3e-4
  eps_high: float = 4e-4


@dataclasses.dataclass(frozen=True)
class CispoConfig:
  """Ceiling 1 + eps_high of the weight with policy.loss = cispo.

  Its authors (MiniMax-M1, arXiv 2506.13585) give no number; 4.0 is a guess.
  """

  eps_high: float = 4.0


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
  """The ratio, what is made of it, and how it is corrected (L13, L14).

  Attributes:
    loss: ppo_clip, dis, gspo or cispo.
    baseline: the ratio's denominator: behavior (the sampler's log-probs) or
      decoupled (recomputed at the start of the batch).
    correction: weight for the gap between the two with baseline = decoupled:
      none, tis, icepop, mis or seq_mis.
    is_low: lower bound of that weight; icepop, mis and seq_mis drop below it.
    is_high: upper bound; tis cuts the weight there, the others drop above it.
  """

  loss: str = 'ppo_clip'
  baseline: str = 'behavior'
  correction: str = 'none'
  is_low: float = 0.5
  is_high: float = 2.0


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """How the terms are added up (4.2), and the entropy bonus (L5).

  Attributes:
    aggregation: token, segment_mean, rollout_mean, task_mean,
      task_rollout_mean or constant.
    constant: L_const, which aggregation = constant needs.
    renormalise_gated: tokens that a gate drops leave the denominator (L10).
    entropy_coef: weight of the entropy bonus.
    entropy_by_type: the same for single token types (L19), in place of
      entropy_coef.
    value_coef: weight of the value loss with critic.sharing =
      shared_backbone (L4).
  """

  aggregation: str = 'token'
  constant: float | None = None
  renormalise_gated: bool = False
  entropy_coef: float = 0.0
  entropy_by_type: Mapping[str, float] = dataclasses.field(
      default_factory=dict
  )
  value_coef: float = 1.0


@dataclasses.dataclass(frozen=True)
class KlConfig:
  """KL to the reference (G8, L6).

  Attributes:
    in_: none, reward or loss.
    estimator: k1, k2 or k3; empty is k1 in the reward and k2 in the loss. The
      mean gradient of k3 is that of the forward KL, KL(reference || policy).
    coef: a number, or a schedule ((update, number), ...): linear in between,
      constant outside; of two points at one update the later one holds from
      there on.
    importance: multiply the loss term by pi / mu and differentiate through
      it.
    by_type: factor on coef for single token types (L19); 1 for the others.
  """

  in_: str = 'none'
  estimator: str = ''
  coef: Schedule = 0.0
  importance: bool = False
  by_type: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LimitsConfig:
  """Limits above which a trained token is counted (L18); None is off (guess).

  Attributes:
    advantage: of |A|.
    ratio: of pi / pi_base.
    proxy: of |d loss / d log pi| of the token, its weight included.
  """

  advantage: float | None = 10.0
  ratio: float | None = 10.0
  proxy: float | None = 0.1
