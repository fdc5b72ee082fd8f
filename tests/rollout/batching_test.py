"""Packing, weights, masks and inspection of a batch (P1-P5, L8, C7, D5)."""

import dataclasses
import itertools

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.losses import aggregation
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import joins as joins_lib
from rl_tpu.rollout import packing
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term
from tests import golden_io
from tests import synthetic


def build(goldens, **options) -> batching.Batch:
  rules = options.pop('rules', term.TerminationRules())
  batch_settings = {
      'row_length': options.pop('row_length', 32),
      'rows_per_microbatch': options.pop('rows', 2),
      'minibatches': options.pop('minibatches', 1),
  }
  critic = {
      'level': options.pop('level', 'token'),
      'holdout_fraction': options.pop('holdout', 0.0),
  }
  admitted = admission.admit(
      [golden_io.rollout(g) for g in goldens],
      termination=rules,
      data=schema.DataConfig(
          allow_dropped_prefix=options.pop('dropped', False)
      ),
      row_length=batch_settings['row_length'],
  )
  return batching.build(
      admitted,
      batching=schema.BatchingConfig(**batch_settings),
      gae=schema.GaeConfig(time_unit=options.pop('time_unit', 'token')),
      critic=schema.CriticConfig(**critic),
      loss=schema.LossConfig(
          aggregation=options.pop('aggregation', 'token'), constant=16.0
      ),
      compaction=schema.CompactionConfig(
          summary_in_policy_loss=options.pop('summary', True)
      ),
      **options,
  )


def randoms(seed: int, count: int = 6):
  return synthetic.random_rollouts(np.random.default_rng(seed), count)


class PackingTest(parameterized.TestCase):

  def test_K36_a_a_row_holds_no_more_than_its_tokens(self):
    row, column, rows = packing.first_fit([7] * 8, 8)
    self.assertEqual(rows, 8)
    np.testing.assert_array_equal(row, np.arange(8))
    np.testing.assert_array_equal(column, 0)

  def test_K36_b_three_rows_are_enough(self):
    lengths = [5, 3, 4, 4, 2, 6]
    row, column, rows = packing.first_fit(lengths, 8)
    self.assertEqual(rows, 3)
    self.assertEqual(np.bincount(row, lengths).tolist(), [8, 8, 8])
    np.testing.assert_array_equal(column, [0, 5, 0, 4, 0, 2])

  def test_K36_c_P5_a_piece_too_long_is_refused(self):
    with self.assertRaisesRegex(ValueError, '9 tokens does not fit'):
      packing.first_fit([3, 9], 8)

  def test_K36_d_short_runs_share_rows(self):
    lengths = [4000] + [100] * 63
    _, _, rows = packing.first_fit(lengths, 4096)
    self.assertEqual(rows, 3)  # 10300 tokens, 12288 places.

  def test_first_fit_keeps_pieces_apart(self):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 33, 200)
    row, column, rows = packing.first_fit(lengths, 64)
    taken = np.zeros((rows, 64), int)
    for r, c, n in zip(row, column, lengths):
      taken[r, c : c + n] += 1
    self.assertEqual(taken.max(), 1)
    self.assertEqual(taken.sum(), lengths.sum())


class LayoutTest(parameterized.TestCase):

  def test_P1_P3_positions_restart_and_the_map_is_exact(self):
    goldens = randoms(1)
    batch = build(goldens)
    rows = batch.segments.rows
    tokens = batch.unpack(rows.token_BT)
    positions = batch.unpack(rows.position_BT)
    ids = batch.unpack(rows.segment_BT)
    seen = []
    for rollout, token, position, segment_id in zip(
        batch.rollouts, tokens, positions, ids
    ):
      for k, segment in enumerate(rollout.segments):
        np.testing.assert_array_equal(token[k], segment.token)
        np.testing.assert_array_equal(position[k], np.arange(len(segment)))
        self.assertLen(np.unique(segment_id[k]), 1)
        seen.append(int(segment_id[k][0]))
    self.assertLen(set(seen), len(seen))
    padding = rows.segment_BT < 0
    self.assertEqual(
        padding.sum(),
        batch.counts['padded_tokens'] - batch.counts['real_tokens'],
    )
    self.assertFalse(rows.action_mask_BT[padding].any())

  def test_K21_padding_holds_a_valid_id(self):
    batch = build(randoms(2), pad_id=3)
    rows = batch.segments.rows
    np.testing.assert_array_equal(rows.token_BT[rows.segment_BT < 0], 3)
    rows = build(randoms(2)).segments.rows
    np.testing.assert_array_equal(rows.token_BT[rows.segment_BT < 0], 0)

  def test_P4_waste_is_counted(self):
    # 21 + 9 tokens in rows of 32, two rows to a microbatch.
    made = [synthetic.rollout(['C' * 21, 'CAAAAAAAA'])]
    batch = build(made)
    self.assertEqual(batch.counts['rows'], 2)
    self.assertEqual(batch.counts['real_tokens'], 30)
    self.assertAlmostEqual(batch.counts['waste'], 1 - 30 / 64)
    self.assertEqual(batch.counts['action_tokens'], 8)
    self.assertEqual(batch.counts['action_share'], 8 / 64)

  def test_L17_P5_a_rollout_stays_in_its_minibatch(self):
    batch = build(randoms(3, 7), minibatches=3, rows=2)
    self.assertLen(batch.minibatches, 3)
    self.assertEqual(batch.minibatch_R.tolist(), [0, 0, 0, 1, 1, 2, 2])
    stop = 0
    for part, spans in enumerate(batch.minibatches):
      for first, last in spans:
        self.assertEqual((first, last - first), (stop, 2))
        stop = last
      inside = np.zeros(batch.counts['rows'], bool)
      for piece in batch.microbatches(part):
        inside[piece] = True
      rollouts = batch.segments.joins.rollout_BT[inside]
      members = set(rollouts[rollouts >= 0].tolist())
      self.assertEqual(
          members, set(np.flatnonzero(batch.minibatch_R == part).tolist())
      )
      self.assertEqual(
          [r.rollout_id for r in batch.minibatch_rollouts(part)],
          [batch.rollouts[r].rollout_id for r in sorted(members)],
      )
    self.assertEqual(stop, batch.counts['rows'])

  def test_K16c_minibatches_without_rollouts_keep_empty_rows(self):
    batch = build(randoms(4, 1), minibatches=3)
    self.assertTrue(all(batch.minibatches))
    for weights in (batch.policy_weight_BT, batch.critic_weight_BT):
      np.testing.assert_array_equal(weights[2:], 0.0)
    self.assertEqual(build([]).counts['policy_tokens'], 0)

  def test_shapes_are_few(self):
    """Batches of about one size have one set of shapes."""
    shapes = {
        tuple(array.shape for array in build(randoms(s), rows=8).segments.joins)
        for s in range(12)
    }
    self.assertLessEqual(len(shapes), 2)

  @parameterized.parameters(
      (0, 1024), (1, 1024), (1024, 1024), (1025, 2048), (2048, 2048),
      (2049, 4096),
  )
  def test_a_table_is_padded_to_a_power_of_two(self, count, size):
    self.assertEqual(joins_lib.table_size(count), size)

  def test_membership_and_order_are_those_of_the_data(self):
    goldens = randoms(5)
    one = build(goldens)
    for golden in goldens:
      golden['segments'].reverse()
    two = build(goldens)
    for a, b in zip(one.segments.rows, two.segments.rows):
      np.testing.assert_array_equal(a, b)


class PaddingTest(absltest.TestCase):

  def test_P3_padding_is_as_types_batch_says(self):
    """Nine tokens of one rollout in three segments, in rows of 32 places."""
    made = [synthetic.rollout(['CAAO', 'CCA', 'CO'])]
    batch = build(made, pad_id=3)
    rows, joins, strata, origin = batch.segments
    # Of an array by position: off the actions, and in padding.
    tokens = {
        'token_BT': (None, 3),
        'position_BT': (None, 0),
        'segment_BT': (None, -1),
        'rollout_BT': (None, -1),
        'time_BT': (None, -1),
        **dict.fromkeys(('owner_BT', 'next_BT'), (-1, -1)),
        **dict.fromkeys(
            (
                'action_mask_BT', 'behaviour_logp_BT', 'transition_mask_BT',
                'decay_BT', 'reward_BT', 'policy_mask_BT', 'critic_mask_BT',
                'type_BT', 'position_BT of strata', 'length_BT',
                'policy_weight_BT', 'critic_weight_BT', 'at_cut_BT',
            ),
            (0, 0),
        ),
    }
    # Of a table: behind its last entry.
    tables = {
        **dict.fromkeys(
            (
                'first_N', 'last_N', 'owner_N', 'next_N', 'rollout_N',
                'final_R', 'task_R',
            ),
            -1,
        ),
        **dict.fromkeys(
            (
                'continues_N', 'later_N', 'bootstrap_R', 'score_R',
                'included_R', 'source_R',
            ),
            0,
        ),
        'decays_R': 1,
    }
    entries = {'N': 3, 'R': 1}
    arrays = [
        *rows._asdict().items(),
        *joins._asdict().items(),
        ('type_BT', strata.type_BT),
        ('position_BT of strata', strata.position_BT),
        ('length_BT', strata.length_BT),
        *origin._asdict().items(),
        *((n, getattr(batch, n)) for n in tokens if hasattr(batch, n)),
    ]
    padding_BT = rows.segment_BT < 0
    self.assertEqual(padding_BT.sum(), 64 - 9)
    off_BT = ~padding_BT & ~rows.action_mask_BT
    self.assertEqual(off_BT.sum(), 6)
    for name, array in arrays:
      if name == 'support_BTM':
        self.assertIsNone(array)
      elif name in tables:
        behind = array[entries[name[-1]] :]
        self.assertNotEmpty(behind)
        np.testing.assert_array_equal(behind, tables[name], err_msg=name)
      else:
        off, padding = tokens[name]
        np.testing.assert_array_equal(array[padding_BT], padding, err_msg=name)
        if off is not None:
          np.testing.assert_array_equal(array[off_BT], off, err_msg=name)
    np.testing.assert_array_equal(joins.continues_N[:3], [True, True, False])
    np.testing.assert_array_equal(joins.next_N[:3], [1, -1, -1])
    # The actions of the first two segments, in columns 1, 2 and 6.
    np.testing.assert_array_equal(joins.next_BT[0, [1, 2, 6]], [2, -1, -1])
    np.testing.assert_array_equal(joins.owner_BT[0, [1, 2, 6]], [1, 2, 6])
    self.assertEqual(joins.score_R[0], 1.0)
    np.testing.assert_array_equal(batch.subgroup_R, [-1])

  def test_R5_L16_a_support_travels_with_its_token(self):
    rollout = golden_io.rollout(synthetic.rollout(['CA', 'CAAO', 'CAA']))
    # One of two ids, of one, and of the whole vocabulary.
    support = support_lib.Support(
        np.asarray([0, 2, 1, 0], np.int32), np.asarray([5, 7, 9], np.int32)
    )
    first, second, third = rollout.segments
    rollout = dataclasses.replace(
        rollout,
        segments=(first, dataclasses.replace(second, support=support), third),
    )
    batch = batching.build(
        admission.admit_all([rollout]),
        batching=schema.BatchingConfig(row_length=32, rows_per_microbatch=2),
        gae=schema.GaeConfig(),
        critic=schema.CriticConfig(),
        loss=schema.LossConfig(),
        compaction=schema.CompactionConfig(),
        max_support=3,
    )
    rows = batch.segments.rows
    whole = [-1, -1, -1]
    self.assertEqual(
        [part.tolist() for part in batch.unpack(rows.support_BTM)[0]],
        [[whole] * 2, [whole, [5, 7, -1], [9, -1, -1], whole], [whole] * 3],
    )
    np.testing.assert_array_equal(rows.support_BTM[rows.segment_BT < 0], -1)


class MaskTest(parameterized.TestCase):

  def test_G16_summary_tokens_can_be_left_to_the_critic(self):
    made = [synthetic.rollout(['CAARSS', 'CAAA'])]
    for summary, expected in ((True, 7), (False, 5)):
      batch = build(made, summary=summary)
      joins = batch.segments.joins
      self.assertEqual(joins.policy_mask_BT.sum(), expected)
      self.assertEqual(joins.critic_mask_BT.sum(), 7)
      self.assertEqual(batch.counts['policy_tokens'], expected)

  def test_G19_one_critic_token_a_turn(self):
    made = [synthetic.rollout(['CAAOAAA', 'CAA'])]
    batch = build(made, level='turn', time_unit='turn')
    joins = batch.segments.joins
    self.assertEqual(joins.critic_mask_BT.sum(), 3)
    self.assertEqual(joins.policy_mask_BT.sum(), 7)
    self.assertEqual(batch.counts['critic_tokens'], 3)
    self.assertEqual(joins.decays_R[0], 3.0)

  def test_T6_a_critic_only_rollout_trains_the_critic_alone(self):
    made = [
        synthetic.rollout(['CAA']),
        synthetic.rollout(
            ['CAAA'], rollout_id='r1', termination='infra_failure',
            terminal_reward=None,
        ),
    ]
    batch = build(
        made, rules=term.TerminationRules(infra_failure_critic='bootstrap')
    )
    self.assertEqual(batch.counts['policy_tokens'], 2)
    self.assertEqual(batch.counts['critic_tokens'], 5)
    np.testing.assert_array_equal(
        batch.segments.joins.bootstrap_R[:2], [False, True]
    )

  def test_C7_held_out_tasks_never_enter_a_critic_update(self):
    made = [
        synthetic.rollout(['CAA'], rollout_id=f'r{k}', task_id=f'task-{k}')
        for k in range(200)
    ]
    batch = build(made, holdout=0.25, row_length=64)
    share = batch.held_out_R.mean()
    self.assertBetween(share, 0.15, 0.35)
    rollout_BT = batch.segments.joins.rollout_BT
    held_BT = (rollout_BT >= 0) & batch.held_out_R[np.maximum(rollout_BT, 0)]
    np.testing.assert_array_equal(batch.critic_weight_BT[held_BT], 0.0)
    self.assertEqual(batch.counts['policy_tokens'], 400)
    self.assertEqual(batch.counts['critic_tokens'], 400 * (1 - share))
    # Targets of held-out tasks are still there, for diagnostics.
    self.assertEqual(batch.segments.joins.critic_mask_BT.sum(), 400)
    self.assertAlmostEqual(float(batch.critic_weight_BT.sum()), 1.0, places=5)
    # The choice hangs on the task alone, and grows with the share.
    again = build(made[::-1], holdout=0.25, row_length=64).held_out_R[::-1]
    np.testing.assert_array_equal(again, batch.held_out_R)
    more = build(made, holdout=0.5, row_length=64).held_out_R
    self.assertTrue((more | ~batch.held_out_R).all())
    self.assertFalse(build(made, row_length=64).held_out_R.any())

  def test_at_cut_and_time(self):
    made = [synthetic.rollout(['CAAO', 'CCA', 'CO'])]
    batch = build(made)
    cut = batch.unpack(batch.at_cut_BT)[0]
    self.assertEqual(
        [c.tolist() for c in cut],
        [[False, False, True, False], [False] * 3, [False] * 2],
    )
    time = np.concatenate(batch.unpack(batch.time_BT)[0])
    np.testing.assert_array_equal(time, np.arange(9))


class WeightTest(parameterized.TestCase):

  @parameterized.parameters(*aggregation.MODES)
  def test_L8_weights_are_those_of_each_whole_minibatch(self, mode):
    goldens = randoms(7, 9)
    batch = build(goldens, minibatches=2, aggregation=mode)
    task_of = {g['rollout_id']: g['task_id'] for g in goldens}
    weight = batch.unpack(batch.policy_weight_BT)
    mask = batch.unpack(batch.segments.joins.policy_mask_BT)
    for part in range(2):
      members = np.flatnonzero(batch.minibatch_R == part)
      # 4.2 word by word, over the rollouts of the minibatch.
      tokens = {r: [m.sum() for m in mask[r]] for r in members}
      trained = [r for r in members if sum(tokens[r])]
      tasks = {r: task_of[batch.rollouts[r].rollout_id] for r in trained}
      per_task = {
          q: sum(sum(tokens[r]) for r in trained if tasks[r] == q)
          for q in tasks.values()
      }
      segments = sum(n > 0 for r in members for n in tokens[r])
      for r in trained:
        for k, n in enumerate(tokens[r]):
          if not n:
            continue
          siblings = sum(t == tasks[r] for t in tasks.values())
          expected = {
              'token': 1 / sum(sum(t) for t in tokens.values()),
              'segment_mean': 1 / (segments * n),
              'rollout_mean': 1 / (len(trained) * sum(tokens[r])),
              'task_mean': 1 / (len(per_task) * per_task[tasks[r]]),
              'task_rollout_mean': 1
              / (len(per_task) * siblings * sum(tokens[r])),
              'constant': 1 / (len(trained) * 16.0),
          }[mode]
          np.testing.assert_allclose(weight[r][k][mask[r][k]], expected, 1e-6)
          np.testing.assert_array_equal(weight[r][k][~mask[r][k]], 0.0)

  def test_L11_G21_G22_layout_changes_no_weight(self):
    goldens = randoms(8)
    for mode in aggregation.MODES:
      found = []
      for row_length, rows in itertools.product((32, 48), (2, 4)):
        batch = build(
            goldens, aggregation=mode, row_length=row_length, rows=rows
        )
        unpacked = batch.unpack(batch.policy_weight_BT)
        found.append(np.concatenate([s for r in unpacked for s in r]))
      for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])

  @parameterized.parameters(
      ('token', [1 / 10] * 4), ('rollout_mean', [1 / 8, 1 / 8, 1 / 8, 1 / 16])
  )
  def test_D5_a_source_changes_no_weight(self, mode, expected):
    # Three rollouts of a source that comes often, one of a rare one.
    made = [
        synthetic.rollout(
            [roles], rollout_id=f'r{k}', task_id=f't{k}', source=source
        )
        for k, (roles, source) in enumerate(
            [('CAA', 'often')] * 3 + [('CAAAA', 'rare')]
        )
    ]
    batch = build(made, aggregation=mode)
    rollout_BT = batch.segments.joins.rollout_BT
    trained_BT = batch.segments.joins.policy_mask_BT
    for weight_BT in (batch.policy_weight_BT, batch.critic_weight_BT):
      for r, weight in enumerate(expected):
        found = weight_BT[trained_BT & (rollout_BT == r)]
        np.testing.assert_allclose(found, weight, rtol=1e-6)


class RewardTest(absltest.TestCase):

  def test_G5_rewards_before_the_first_action_are_counted(self):
    made = [
        synthetic.rollout(['CCAAO'], rewards=[[0.25, 0.5, 0, 1.0, 2.0]]),
        synthetic.rollout(['CA'], rollout_id='r1'),
    ]
    batch = build(made)
    np.testing.assert_array_equal(batch.dropped_reward_R, [0.75, 0.0])
    self.assertEqual(batch.counts['reward/before_action'], 0.75)
    self.assertEqual(batch.counts['reward/before_kept_action'], 0.0)
    # E2: step rewards after G5, and the score; what was dropped is not in it.
    np.testing.assert_array_equal(batch.return_R, [4.0, 1.0])
    np.testing.assert_array_equal(batch.score_R, [1.0, 1.0])

  def test_T10_a_reward_of_a_dropped_action_is_counted_apart(self):
    made = synthetic.rollout(
        ['CAAO', 'CCAA'], rewards=[[0] * 4, [0, 3.0, 0, 0]]
    )
    del made['segments'][0]
    batch = build([made], dropped=True)
    self.assertEqual(batch.counts['reward/before_kept_action'], 3.0)
    self.assertEqual(batch.counts['reward/before_action'], 0.0)
    np.testing.assert_array_equal(batch.return_R, [1.0])
    self.assertEqual(batch.segments.joins.decays_R[0], 4.0)


if __name__ == '__main__':
  absltest.main()
