"""C2 to C7, C12 to C14 from packed batches, against a plain loop."""

import types

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import critic_figures
from rl_tpu.config import schema
from rl_tpu.metrics import tags
from rl_tpu.rollout import batching
from rl_tpu.tasks import success as success_lib
from tests import batch_cases
from tests import golden_io
from tests import synthetic

GAE = schema.GaeConfig(
    gamma=0.97,
    lambda_policy=schema.LambdaConfig(fixed=0.9),
    lambda_critic=schema.LambdaConfig(fixed=0.8),
)


def run(goldens, **options) -> batch_cases.Outcome:
  values = {
      (g['rollout_id'], s['segment_index']): (s['value'], s['final_value'])
      for g in goldens
      for s in g['segments']
  }
  return batch_cases.run(
      [golden_io.rollout(g) for g in goldens], values,
      **{'gae': GAE, **options},
  )


def scored(outcome: batch_cases.Outcome):
  """What `Updater.score` gives, as far as figures read it."""
  return types.SimpleNamespace(
      value_BT=outcome.value_BT, estimates=outcome.estimates
  )


def randoms(seed: int, count: int = 12):
  made = synthetic.random_rollouts(np.random.default_rng(seed), count)
  # Stored out of time order: neither rows nor records define time (V1).
  rng = np.random.default_rng(seed + 1)
  for golden in made:
    rng.shuffle(golden['segments'])
  return made


def plain_rows(outcome, level='token'):
  """One dict a critic token: rollouts in batch order, actions in time order."""
  rows = []
  columns = {
      'value': outcome.value_BT,
      'target': outcome.estimates.return_BT,
      'advantage': outcome.estimates.advantage_BT,
      'delta': outcome.estimates.delta_BT,
  }
  arrays = {n: outcome.batch.unpack(a) for n, a in columns.items()}
  for r, rollout in enumerate(outcome.batch.rollouts):
    order = np.argsort([s.segment_index for s in rollout.segments])
    first = rollout.segments[order[0]]
    j = first.turn_offset if level == 'turn' else first.action_offset
    mine, seen = [], set()
    for k in order:
      segment = rollout.segments[k]
      for p in np.flatnonzero(segment.is_action):
        turn = int(segment.turn_id[p])
        if level == 'turn' and turn in seen:
          continue
        seen.add(turn)
        row = {name: arrays[name][r][k][p] for name in arrays}
        row |= {
            'rollout': rollout.rollout_id,
            'source': rollout.source,
            'termination': rollout.termination.value,
            'action_index': j,
            'version': int(segment.behaviour_version[p]),
            'segment': segment.segment_index,
        }
        j += 1
        mine.append(row)
    for row in mine:
      row['length'] = j
    for row, after in zip(mine, mine[1:]):
      row['at_cut'] = row['segment'] != after['segment']
    mine[-1]['at_cut'] = False
    rows += mine
  return rows


class TableTest(parameterized.TestCase):

  def check(self, table, rows):
    self.assertLen(table, len(rows))
    for name in ('value', 'target', 'advantage', 'delta'):
      expected = np.asarray([row[name] for row in rows], np.float64)
      np.testing.assert_array_equal(getattr(table, name), expected, name)
    for name in (
        'rollout', 'source', 'termination', 'action_index', 'length', 'at_cut'
    ):
      self.assertEqual(
          np.asarray(getattr(table, name)).tolist(),
          [row[name] for row in rows], name,
      )

  @parameterized.parameters(0, 1, 2)
  def test_C14_one_gather_in_time_order(self, seed):
    outcome = run(randoms(seed))
    table, held_out = critic_figures.critic_table(
        outcome.batch, scored(outcome), version=9
    )
    rows = plain_rows(outcome)
    self.check(table, rows)
    self.assertFalse(held_out.any())
    for name in ('value', 'target', 'advantage', 'delta'):
      self.assertEqual(getattr(table, name).dtype, np.float64)
    bootstrapped = [r['termination'] == 'budget_truncation' for r in rows]
    self.assertEqual(table.bootstrapped.tolist(), bootstrapped)

  def test_C2_gap_of_the_version_that_sampled_the_token(self):
    made = randoms(3)
    for number, golden in enumerate(made):
      for segment in golden['segments']:
        segment['policy_version'] = number % 3 + segment['segment_index']
    outcome = run(made)
    table, _ = critic_figures.critic_table(
        outcome.batch, scored(outcome), version=9
    )
    rows = plain_rows(outcome)
    self.assertEqual(table.gap.tolist(), [9 - row['version'] for row in rows])
    self.assertGreater(len(set(table.gap.tolist())), 2)

  def test_G19_a_row_is_a_turn_under_turn_level(self):
    outcome = run(
        randoms(4), level='turn', gae=schema.GaeConfig(time_unit='turn')
    )
    table, _ = critic_figures.critic_table(
        outcome.batch, scored(outcome), level='turn'
    )
    rows = plain_rows(outcome, 'turn')
    self.assertLess(len(rows), len(plain_rows(outcome)))
    self.assertEqual(
        table.action_index.tolist(), [row['action_index'] for row in rows]
    )
    self.assertEqual(table.length.tolist(), [row['length'] for row in rows])

  def test_T10_a_dropped_prefix_counts_in_j_and_n(self):
    made = synthetic.rollout(['CAAA', 'CAA', 'CAAAO'])
    made['segments'] = made['segments'][1:]
    outcome = run([made], data=schema.DataConfig(allow_dropped_prefix=True))
    table, _ = critic_figures.critic_table(outcome.batch, scored(outcome))
    self.assertEqual(table.action_index.tolist(), [3, 4, 5, 6, 7])
    self.assertEqual(table.length.tolist(), [8] * 5)


class FiguresTest(absltest.TestCase):

  def batch(self, outcome, held_out: float) -> batching.Batch:
    """The outcome's rollouts again, with held-out tasks."""
    return batching.build(
        outcome.admission,
        batching=schema.BatchingConfig(
            row_length=batch_cases.ROW_LENGTH,
            rows_per_microbatch=batch_cases.ROWS,
        ),
        gae=GAE,
        critic=schema.CriticConfig(holdout_fraction=held_out),
        loss=schema.LossConfig(),
        compaction=schema.CompactionConfig(),
    )

  def figures(self, outcome, batch, **changes):
    config = schema.ExperimentConfig('test', **changes)
    watch = critic_figures.CriticWatch(config)
    pool = []
    values = watch.figures(
        10, batch, scored(outcome), version=4,
        success=success_lib.TaskSuccess(), pool=pool,
    )
    return watch, values, pool

  def test_C7_held_out_tasks_have_figures_of_their_own(self):
    outcome = run(randoms(5, 30))
    # Tasks t0 to t2 have hashes around 0.3, 0.6 and 0.9 or so: find a share
    # that holds out some of them and not all.
    shares = sorted(
        batching.task_hash(task)
        for task in {r.task_id for r in outcome.batch.rollouts}
    )
    batch = self.batch(outcome, (shares[0] + shares[1]) / 2)
    self.assertTrue(batch.held_out_R.any())
    self.assertFalse(batch.held_out_R.all())
    _, values, pool = self.figures(outcome, batch)
    held = {
        r.rollout_id
        for r, is_held in zip(batch.rollouts, batch.held_out_R)
        if is_held
    }
    for name, inside in (('critic/bias', False), ('critic/holdout/bias', True)):
      errors = [
          float(row['value']) - float(row['target'])
          for row in plain_rows(outcome)
          if (row['rollout'] in held) == inside
      ]
      self.assertAlmostEqual(values[name], np.mean(errors), places=9)
    # Sums of means over a division give the whole back.
    ended = [
        row for row in plain_rows(outcome)
        if row['rollout'] in held and row['termination'] == 'success'
    ]
    ((target, value),) = pool
    self.assertEqual(target.tolist(), [row['target'] for row in ended])
    self.assertEqual(value.tolist(), [row['value'] for row in ended])

  def test_C2_C4_C6_every_figure_has_a_name_of_the_table(self):
    outcome = run(randoms(6, 30))
    watch, values, _ = self.figures(outcome, self.batch(outcome, 0.5))
    self.assertEqual(tags.unknown(values), [])
    for name in (
        'critic/explained_variance', 'critic/holdout/ece_scored',
        'slice/bias_by_source/math', 'slice/holdout/delta_by_index/1',
        'slice/mse_by_gap/4', 'critic/matched_pairs', 'critic/delta_cut',
    ):
      self.assertIn(name, values)
    written = []
    writer = types.SimpleNamespace(
        image=lambda step, tag, pixels: written.append((step, tag))
    )
    watch.write_pictures(writer, 10)
    self.assertIn((10, 'critic/calibration'), written)
    self.assertIn((10, 'critic/holdout/value_curves'), written)
    self.assertEqual(tags.unknown(tag for _, tag in written), [])
    written.clear()
    watch.write_pictures(writer, 11)
    self.assertEqual(written, [])

  def test_C14_figures_are_double_precision(self):
    outcome = run(randoms(7))
    # Returns around 1e6 whose spread of 0.1 float32 sums would lose.
    rng = np.random.default_rng(0)
    shape = outcome.value_BT.shape
    target = (1e6 + rng.integers(0, 2, shape) * 0.125).astype(np.float32)
    value = np.full(shape, 1e6, np.float32)
    fake = types.SimpleNamespace(
        value_BT=value,
        estimates=outcome.estimates._replace(return_BT=target),
    )
    table, _ = critic_figures.critic_table(outcome.batch, fake)
    mask = np.asarray(outcome.batch.segments.joins.critic_mask_BT)
    share = np.mean(target[mask] > 1e6)
    values = critic_figures.diagnostics.critic_figures(table)
    self.assertAlmostEqual(values['critic/bias'], -0.125 * share, places=12)
    self.assertAlmostEqual(values['critic/mse'], share / 64, places=12)

  def test_E1_a_group_estimator_has_no_critic_to_watch(self):
    outcome = run(randoms(8))
    _, values, pool = self.figures(
        outcome, outcome.batch,
        advantage=schema.AdvantageConfig(estimator='grpo'),
    )
    self.assertEqual((values, pool), ({}, []))


class RaisedTest(absltest.TestCase):

  def raised(self, outcome, advantage_BT, **changes):
    config = schema.ExperimentConfig('test', **changes)
    report = types.SimpleNamespace(critic={'loss': 0.5})
    return critic_figures.CriticWatch(config).raised(
        outcome.batch, advantage_BT, report, {}, frozen=False
    )

  def test_C13_positive_advantage_in_the_last_tenth(self):
    made = [
        synthetic.rollout(['CAAAAAO', 'CAAAAAOO'], rollout_id=f'r{k}')
        for k in range(3)
    ]
    outcome = run(made)
    advantage_BT = np.full(outcome.value_BT.shape, np.nan)
    mask = np.asarray(outcome.batch.segments.joins.policy_mask_BT)
    advantage_BT[mask] = -0.5
    for parts in outcome.batch.unpack(advantage_BT):
      parts[1][5] = 19.0  # The tenth of ten actions.
    found, shown = self.raised(outcome, advantage_BT)
    self.assertEqual([a.name for a in found], ['one_sided_last'])
    self.assertEqual(shown['adv/last_tenth'], 1.0)
    self.assertEqual(shown['adv/first_tenth'], 0.0)
    self.assertEqual(shown['critic/alarm/one_sided_last'], 1.0)
    self.assertEqual(tags.unknown(shown), [])
    for parts in outcome.batch.unpack(advantage_BT):
      parts[0][1] = 19.0  # The first of ten.
    found, shown = self.raised(outcome, advantage_BT)
    self.assertEqual(found, [])
    self.assertEqual(shown['adv/first_tenth'], 0.5)

  def test_C12_equal_returns_are_logged_and_nothing_is_rescaled(self):
    def made(rewards):
      return [
          synthetic.rollout(
              ['CAAO', 'CA'], rollout_id=f'r{k}', task_id=f't{k}',
              terminal_reward=reward, values=[[0, 0.5, 0.25, 0], [0, 0.75]],
          )
          for k, reward in enumerate(rewards)
      ]

    equal, mixed = run(made([1.0, 1.0])), run(made([1.0, 0.0]))
    advantage = equal.estimates.advantage_BT
    self.assertEqual(self.raised(equal, advantage)[1]['critic/same_returns'], 1)
    self.assertEqual(
        self.raised(mixed, mixed.estimates.advantage_BT)[1][
            'critic/same_returns'
        ],
        0,
    )
    # The first rollout is the same in both: so are its terms and weights.
    for name in ('advantage_BT', 'return_BT', 'delta_BT'):
      left, right = (
          o.actions(getattr(o.estimates, name))['r0'] for o in (equal, mixed)
      )
      np.testing.assert_array_equal(left, right, name)
    np.testing.assert_array_equal(
        equal.batch.policy_weight_BT, mixed.batch.policy_weight_BT
    )
    np.testing.assert_array_equal(
        equal.batch.critic_weight_BT, mixed.batch.critic_weight_BT
    )
    # gamma 0.97, lambda 0.9, values 0.5 0.25 0.75, reward 1 at the end.
    delta = [0.97 * 0.25 - 0.5, 0.97 * 0.75 - 0.25, 1.0 - 0.75]
    second = delta[1] + 0.97 * 0.9 * delta[2]
    expected = [delta[0] + 0.97 * 0.9 * second, second, delta[2]]
    np.testing.assert_allclose(
        equal.actions(advantage)['r0'], expected, rtol=1e-5
    )


if __name__ == '__main__':
  absltest.main()
