"""The device form of a batch: packed rows of segments and their joins.

Everything here is layout and recorded numbers. It is built once on the host
(`rollout.batching`) from roles, ids and the termination table, so the jitted
code never sorts, searches or branches on data (P3: the map from row and
position to rollout, segment and time travels with the batch).
"""

from typing import NamedTuple

import jax


class Rows(NamedTuple):
  """What the model reads: packed token rows, one entry per position.

  Attributes:
    token_BT: int32 token ids; padding holds a valid id.
    position_BT: int32, restarts at 0 in every segment (P1); 0 in padding.
    segment_BT: int32 dense segment id in the batch, -1 in padding. Attention
      stays inside one id.
    action_mask_BT: bool, role A or S: the policy sampled the token.
    behaviour_logp_BT: float32 log-probability it was drawn with (R5); 0 off the
      actions.
    support_BTM: int32 ids that the token could have been drawn from, -1 behind
      them; all -1 is the whole vocabulary. None where no token was truncated.
  """

  token_BT: jax.Array
  position_BT: jax.Array
  segment_BT: jax.Array
  action_mask_BT: jax.Array
  behaviour_logp_BT: jax.Array
  support_BTM: jax.Array | None = None


EARLIER = -2  # In Joins.owner_BT.


class Joins(NamedTuple):
  """How positions follow each other in rollout time (G1 to G5, G19).

  A transition is an action token, or under `critic.level = turn` the first
  action token of a turn.

  Attributes:
    transition_mask_BT: bool, positions that are transitions.
    decay_BT: bool, gamma and lambda apply after this transition (G10).
    reward_BT: float32 reward of each action after G5 and G6; 0 elsewhere.
    owner_BT: int32 column of the transition that an action token belongs to:
      itself, or its turn's first action; EARLIER where that lies in an earlier
      segment. -1 off the actions.
    next_BT: int32 column of the next transition of the segment, -1 at its last
      one and off the transitions.
    rollout_BT: int32 dense rollout id, -1 in padding.
    segment_BT: int32 index into N, -1 in padding.
    policy_mask_BT: bool (G16).
    critic_mask_BT: bool (G16; one a turn under `critic.level = turn`).
    first_N: int32 flat index (row * T + column) of the segment's first
      transition, -1 if none. Segments are sorted by (rollout, segment_index),
      so N is time order.
    last_N: the same of its last transition.
    owner_N: int32 flat index of the transition that the segment's first
      actions belong to where it lies in an earlier segment, -1 if none do.
    next_N: int32 next segment of the rollout that has a transition, for a
      segment that has one; -1 if none follows.
    rollout_N: int32 rollout of the segment, -1 in the table's padding.
    continues_N: bool, the next entry of N belongs to the same rollout.
    later_N: int32, actions in later segments of the rollout (G20).
    final_R: int32 flat index of the last real token of the rollout's last
      segment: the value head there is the bootstrap value (G4). -1 if none.
    bootstrap_R: bool, the end is bootstrapped.
    score_R: float32 terminal reward in use; 0 where none is (G6, T2).
    included_R: bool, rollout is in either batch; others come out as 0 (G12).
    decays_R: float32 number of decaying transitions, N of G11; 1 in the table's
      padding.
    source_R: int32 dense id of the task source (G17).
  """

  transition_mask_BT: jax.Array
  decay_BT: jax.Array
  reward_BT: jax.Array
  owner_BT: jax.Array
  next_BT: jax.Array
  rollout_BT: jax.Array
  segment_BT: jax.Array
  policy_mask_BT: jax.Array
  critic_mask_BT: jax.Array
  first_N: jax.Array
  last_N: jax.Array
  owner_N: jax.Array
  next_N: jax.Array
  rollout_N: jax.Array
  continues_N: jax.Array
  later_N: jax.Array
  final_R: jax.Array
  bootstrap_R: jax.Array
  score_R: jax.Array
  included_R: jax.Array
  decays_R: jax.Array
  source_R: jax.Array


class Strata(NamedTuple):
  """What the figures of action tokens are split by (L19).

  Attributes:
    type_BT: int32 index into `token_types.NAMES`; text off the actions.
    position_BT: int32 tenth of the rollout's stored actions, 0 to 9.
    length_BT: int32 power of two of the rollout's stored actions: 0 for 1, 1
      for 2 and 3, 2 for 4 to 7.
  """

  type_BT: jax.Array
  position_BT: jax.Array
  length_BT: jax.Array


class Origin(NamedTuple):
  """Where a segment belongs: tables by dense id, on every device (L8).

  Attributes:
    rollout_N: int32 rollout of every segment, -1 in the table's padding.
    task_R: int32 dense task id of every rollout, -1 in padding.
  """

  rollout_N: jax.Array
  task_R: jax.Array


class SegmentBatch(NamedTuple):
  """All rollouts between two weight pushes, packed into rows.

  Attributes:
    rows: what the model reads.
    joins: what the recursion reads.
    strata: what figures are split by; None counts every token as text.
    origin: what denominators and rollout means are taken over; needed by
      two-pass objectives (L20).
  """

  rows: Rows
  joins: Joins
  strata: Strata | None = None
  origin: Origin | None = None


class Estimates(NamedTuple):
  """Per position output of the advantage room (G14); 0 off the actions."""

  delta_BT: jax.Array
  advantage_BT: jax.Array
  return_BT: jax.Array
  reward_BT: jax.Array


class Plan(NamedTuple):
  """What the first pass over a minibatch has found out (L20); constants.

  A part that the settings do not need is None.

  Attributes:
    weight_BT: aggregation weights without the gated tokens (L10).
    correction_BT: weight of L13 on the policy term, 0 where it gates.
    log_ratio_BT: the rollout's mean log ratio (L15).
    slope_BT: derivative of the policy terms by each log-probability (L15).
  """

  weight_BT: jax.Array | None = None
  correction_BT: jax.Array | None = None
  log_ratio_BT: jax.Array | None = None
  slope_BT: jax.Array | None = None


class Minibatch(NamedTuple):
  """Rows of one optimizer step with everything the losses need.

  Attributes:
    rows: the model's input.
    advantage_BT: float32, normalised where asked; 0 off the policy mask.
    return_BT: float32 critic target.
    value_BT: float32 V_p of the recursion (v_old of L4).
    base_logp_BT: float32 log pi_base (L13).
    reference_logp_BT: float32, zeros where no reference is used.
    policy_weight_BT: float32 fixed aggregation weight (4.2), 0 off the mask.
    critic_weight_BT: float32 the same for the critic.
    strata: as in SegmentBatch.
    origin: as in SegmentBatch.
    kl_coef_Y: float32 coefficient of the KL term by token type (L6), an
      argument of the compiled step; None takes the constant of the settings.
    plan: of a two-pass objective; None where one pass is enough.
  """

  rows: Rows
  advantage_BT: jax.Array
  return_BT: jax.Array
  value_BT: jax.Array
  base_logp_BT: jax.Array
  reference_logp_BT: jax.Array
  policy_weight_BT: jax.Array
  critic_weight_BT: jax.Array
  strata: Strata | None = None
  origin: Origin | None = None
  kl_coef_Y: jax.Array | None = None
  plan: Plan | None = None


class Sizes(NamedTuple):
  """Static sizes of a batch.

  Attributes:
    rows: packed rows, a whole number of microbatches.
    length: tokens of a row.
    segments: size of the segments' tables (N).
    rollouts: size of the rollouts' tables (R).
    support: ids of a sampling support of each token; 0 where none travel.
  """

  rows: int
  length: int
  segments: int
  rollouts: int
  support: int = 0


# Everything else in a batch is int32.
_BOOL = (
    'action_mask_BT', 'transition_mask_BT', 'decay_BT', 'policy_mask_BT',
    'critic_mask_BT', 'continues_N', 'bootstrap_R', 'included_R',
)
_FLOAT = ('behaviour_logp_BT', 'reward_BT', 'score_R', 'decays_R')


def abstract(sizes: Sizes) -> SegmentBatch:
  """Shapes and dtypes of the batches of a run, nothing allocated."""
  letters = {
      'BT': (sizes.rows, sizes.length),
      'BTM': (sizes.rows, sizes.length, sizes.support),
      'N': (sizes.segments,),
      'R': (sizes.rollouts,),
  }

  def array(name: str) -> jax.ShapeDtypeStruct:
    dtype = 'bool' if name in _BOOL else 'int32'
    if name in _FLOAT:
      dtype = 'float32'
    return jax.ShapeDtypeStruct(letters[name.rsplit('_', 1)[1]], dtype)

  fill = lambda kind: kind(**{name: array(name) for name in kind._fields})
  rows = fill(Rows)
  if not sizes.support:
    rows = rows._replace(support_BTM=None)
  return SegmentBatch(rows, fill(Joins), fill(Strata), fill(Origin))
