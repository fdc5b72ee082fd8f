"""C8, C9: the critic sees what the actor sees, and nothing else."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.records import records
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import budget as budget_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term
from tests.learner import recorded

MODEL = model_config.DecoderConfig(
    vocab_size=24, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
    head_width=16, mlp_width=24, max_length=64,
)
BATCHING = schema.BatchingConfig(row_length=48, rows_per_microbatch=4)

# What the critic is allowed to read, or what only says where it stands.
VISIBLE = {
    'rollout': {'segments'},
    'segment': {'token', 'segment_index'},
}
# Another value for every other field: outcomes, rewards, what only the
# verifier or the environment knows, and everything that is only logged.
CHANGED_ROLLOUT = dict(
    rollout_id='other', task_id='other', source='other', task_family='other',
    group_id='other', termination=term.Termination.FAILURE,
    abort_cause=term.AbortCause.OPERATOR, fault_cause=term.FaultCause.MEMORY,
    terminal_reward=-7.0, solved=True, reward_components={'x': [(0, 0, 5.0)]},
    env_name='other', env_version='9', env_seed=99, env_snapshot='other',
    permissions_hash='other', tool_set_hash='other', verifier_id='other',
    verifier_version='9', verifier_input_hash='other',
    budgets=budget_lib.Budget(turns=1), num_segments=99, t_start=9.0,
    t_end=9.0, t_enqueued=9.0, t_consumed=9.0, agent_id='other',
    tenant_id='other', discard_reason=term.DiscardReason.STALE,
    safety_events=(('x', 0, 0),), state_ids={0: 'other'},
    counters={'x': 9.0}, fault_detail='other', fault_trace='other',
    seconds={'x': 9.0}, score_components={'x': 9.0}, schema_version=9,
)
CHANGED_SEGMENT = dict(
    rollout_id='other', global_token_offset=99, action_offset=99,
    turn_offset=99, end_kind='resume_cut', prev_state_ref='other',
    next_state_ref='other', summary_hash='other', summary_author='runtime',
    context_length=1, context_hash='other', sampling=None,
    cut_cause='unknown',
)


def changed(rollout: records.Rollout) -> records.Rollout:
  """The rollout with every field but the visible ones another one."""
  segments = []
  for segment in rollout.segments:
    n = len(segment)
    segments.append(
        dataclasses.replace(
            segment,
            # Roles decide where values are used, never what they are: a
            # token that was an observation becomes an action and so on.
            role=np.where(segment.is_action, 'O', 'A'),
            turn_id=segment.turn_id[::-1].copy(),
            token_type=segment.token_type + 1,
            reward=segment.reward + 3.0,
            behaviour_logprob=np.full(n, -9.0, np.float32),
            behaviour_version=np.full(n, 7, np.int32),
            support=support_lib.whole(n),
            **CHANGED_SEGMENT,
        )
    )
  return dataclasses.replace(
      rollout, segments=tuple(segments), **CHANGED_ROLLOUT
  )


def build(rollouts) -> batching.Batch:
  return batching.build(
      admission.admit_all(rollouts),
      batching=BATCHING,
      gae=schema.GaeConfig(),
      critic=schema.CriticConfig(),
      loss=schema.LossConfig(),
      compaction=schema.CompactionConfig(),
  )


class CriticLeakTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.rollouts = recorded.rollouts(MODEL.vocab_size, count=5)
    self.batch = build(self.rollouts)
    self.learner = learner_lib.Learner(
        MODEL,
        mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:1]),
        model=schema.ModelConfig(remat='none'),
        temperature=1.0,
        objective=objective.Settings(),
        gae_config=schema.GaeConfig(),
        critic=schema.CriticConfig(),
        actor_optimizer=schema.OptimizerConfig(),
        critic_optimizer=schema.OptimizerConfig(),
    )
    params = decoder.init_params(MODEL, jax.random.key(0))
    self.state = self.learner.init_state(params, with_critic=True)
    head = self.state.critic.params['value_head']
    head['kernel'] = jnp.linspace(-1.0, 1.0, MODEL.width)

  def updater(self) -> update_lib.Updater:
    return update_lib.Updater(
        self.learner,
        batching=BATCHING,
        critic=schema.CriticConfig(),
        kl=schema.KlConfig(),
        policy=schema.PolicyConfig(baseline='decoupled'),
        reference=None,
    )

  def values(self, batch: batching.Batch) -> np.ndarray:
    """Heads of all positions."""
    rows = [
        self.learner.place_rows(
            jax.tree.map(lambda x: np.asarray(x)[a:b], batch.segments.rows)
        )
        for part in batch.minibatches
        for a, b in part
    ]
    return np.concatenate(
        self.learner.value_heads(self.state.critic_params, rows)
    )

  def test_C8_every_field_of_a_record_is_visible_or_changed(self):
    names = lambda cls: {f.name for f in dataclasses.fields(cls)}
    self.assertEqual(
        names(records.Rollout), VISIBLE['rollout'] | set(CHANGED_ROLLOUT)
    )
    arrays = {
        'role', 'turn_id', 'token_type', 'reward', 'behaviour_logprob',
        'behaviour_version', 'support',
    }
    self.assertEqual(
        names(records.Segment),
        VISIBLE['segment'] | set(CHANGED_SEGMENT) | arrays,
    )
    one, other = self.rollouts[0], changed(self.rollouts[0])
    for name in CHANGED_ROLLOUT:
      self.assertNotEqual(getattr(one, name), getattr(other, name), name)
    for name in CHANGED_SEGMENT:
      self.assertNotEqual(
          getattr(one.segments[0], name), getattr(other.segments[0], name), name
      )

  def test_C8_privileged_and_logged_fields_leave_values_bit_identical(self):
    other = build([changed(r) for r in self.rollouts])
    for name in ('token_BT', 'position_BT', 'segment_BT'):
      np.testing.assert_array_equal(
          getattr(other.segments.rows, name),
          getattr(self.batch.segments.rows, name),
      )
    before, after = self.values(self.batch), self.values(other)
    self.assertGreater(np.ptp(before), 0.1)
    np.testing.assert_array_equal(after, before)

  def test_C8_tokens_are_what_values_depend_on(self):
    segment = self.rollouts[0].segments[0]
    token = segment.token.copy()
    token[0] = (token[0] + 1) % MODEL.vocab_size
    moved = dataclasses.replace(
        self.rollouts[0],
        segments=(
            dataclasses.replace(segment, token=token),
            *self.rollouts[0].segments[1:],
        ),
    )
    other = build([moved, *self.rollouts[1:]])
    before, after = self.values(self.batch), self.values(other)
    self.assertFalse(np.array_equal(after, before))

  def test_C8_actor_and_critic_read_the_same_arrays(self):
    seen = {}

    def spy(name):
      real = getattr(self.learner, name)

      def call(params, rows):
        seen[name] = rows
        return real(params, rows)

      return mock.patch.object(self.learner, name, call)

    with spy('value_heads'), spy('logp'):
      scored = self.updater().score(
          self.state, self.batch.segments, self.batch.minibatches
      )
    self.assertEqual(set(seen), {'value_heads', 'logp'})
    for left, right in zip(seen['value_heads'], seen['logp'], strict=True):
      self.assertIs(left.token_BT, right.token_BT)
      self.assertIs(left.position_BT, right.position_BT)
      self.assertIs(left.segment_BT, right.segment_BT)
    token_BT = np.concatenate([rows.token_BT for rows in scored.rows])
    np.testing.assert_array_equal(token_BT, self.batch.segments.rows.token_BT)


if __name__ == '__main__':
  absltest.main()
