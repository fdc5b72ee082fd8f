"""The limits a rollout runs under."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Budget:
  """Limits of one rollout; None is no limit.

  Attributes:
    turns: model replies, summaries included.
    tokens: sampled tokens.
    wall_s: seconds from reset.
    window: tokens of one segment.
    budget_visible: what is left of the limits is part of what the policy sees.
    holds_at_eval: the same limits hold at evaluation. The two flags decide T3
      and T4.
  """

  turns: int | None = None
  tokens: int | None = None
  wall_s: float | None = None
  window: int | None = None
  budget_visible: bool = False
  holds_at_eval: bool = True
