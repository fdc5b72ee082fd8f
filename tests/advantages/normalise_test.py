"""G15, G17, G23, O7, K13, K16: advantages on one scale."""

import json

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import normalise
from rl_tpu.config import schema
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.types import batch as batch_lib
from tests import golden_io

GOLDEN = golden_io.named('gae_hand') + golden_io.named('gae_random')


def config(norm: str, **changes) -> schema.AdvantageConfig:
  return schema.AdvantageConfig(norm=norm, **changes)


def joins(mask_BT, rollout_BT=None, source_R=(0,)) -> batch_lib.Joins:
  """Joins of which only what normalisation reads is there."""
  mask_BT = np.asarray(mask_BT, bool)
  if rollout_BT is None:
    rollout_BT = np.zeros(mask_BT.shape, np.int32)
  fields = dict.fromkeys(batch_lib.Joins._fields)
  fields |= {
      'policy_mask_BT': mask_BT,
      'rollout_BT': np.asarray(rollout_BT, np.int32),
      'source_R': np.asarray(source_R, np.int32),
  }
  return batch_lib.Joins(**fields)


def packed(golden, *, row_length: int, minibatches: int) -> batching.Batch:
  """A golden case in rows."""
  settings = golden['config']
  admitted = admission.admit(
      [golden_io.rollout(r) for r in golden['rollouts']],
      termination=golden_io.rules(settings),
      data=schema.DataConfig(
          allow_dropped_prefix=settings['allow_dropped_prefix']
      ),
      reward=schema.RewardConfig(weights={'terminal': 1.0, 'step': 1.0}),
      row_length=row_length,
  )
  return batching.build(
      admitted,
      batching=schema.BatchingConfig(
          row_length=row_length, rows_per_microbatch=4, minibatches=minibatches
      ),
      gae=golden_io.gae_config(settings),
      critic=schema.CriticConfig(level=settings['critic_level']),
      loss=schema.LossConfig(),
      compaction=schema.CompactionConfig(
          summary_in_policy_loss=settings['summary_in_policy_loss']
      ),
  )


def spread(golden, batch: batching.Batch) -> np.ndarray:
  """The golden advantages in rows, NaN in padding and off the actions."""
  array_BT = np.full(batch.time_BT.shape, np.nan, np.float32)
  expected = {
      r['rollout_id']: r['segments'] for r in golden['expected']['rollouts']
  }
  for rollout, parts in zip(batch.rollouts, batch.unpack(array_BT)):
    columns = zip(rollout.segments, parts, expected[rollout.rollout_id])
    for segment, part, golden_segment in columns:
      advantage = np.asarray(golden_segment['advantage'], np.float32)
      part[segment.is_action] = advantage[segment.is_action]
  return array_BT


def running_of(golden) -> normalise.Running:
  return {
      name: normalise.Statistics(
          count=found['count'],
          mean=found['mean'],
          squared_deviation=found['std'] ** 2 * found['count'],
      )
      for name, found in golden['config']['advantage_norm']['running'].items()
  }


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*GOLDEN)
  def test_G17_none_batch_and_source(self, golden):
    settings = golden['config']['advantage_norm']
    eps, floor = settings['eps'], settings['std_floor']
    for row_length, minibatches in ((64, 1), (80, 3)):
      batch = packed(golden, row_length=row_length, minibatches=minibatches)
      for norm in normalise.NORMS:
        advantage_BT, _ = normalise.normalise(
            spread(golden, batch),
            batch.segments.joins,
            config=config(
                norm, eps=eps, std_floor=floor, min_count=settings['min_count']
            ),
            sources=batch.sources,
            running=running_of(golden),
        )
        self._check(golden, batch, advantage_BT, norm)

  def _check(self, golden, batch, advantage_BT, norm):
    want = dict(
        zip(
            [r['rollout_id'] for r in golden['rollouts']],
            golden['expected']['normalised_advantage'][norm],
        )
    )
    self.assertEqual(advantage_BT.dtype, np.float32)
    np.testing.assert_array_equal(advantage_BT[batch.time_BT < 0], 0.0)
    unpacked = dict(
        zip(
            [r.rollout_id for r in batch.rollouts], batch.unpack(advantage_BT)
        )
    )
    flat = lambda parts: np.concatenate([np.zeros(0), *parts])
    for rollout_id, segments in want.items():
      if rollout_id not in unpacked:
        # In neither batch: not packed, and the file says 0.
        np.testing.assert_array_equal(flat(segments), 0.0)
        continue
      golden_io.assert_close(
          flat(unpacked[rollout_id]),
          flat(segments),
          name=f'{norm} {rollout_id}',
      )


class NormaliseTest(parameterized.TestCase):

  def whiten(self, advantage_BT, mask_BT, **changes):
    return normalise.normalise(
        advantage_BT,
        joins(mask_BT),
        config=config('batch', **changes),
        sources=('s',),
        running={},
    )[0]

  def test_K13_population_deviation_of_the_whole_batch(self):
    # 1, 2, 3, 10: mean 4, squares 9 + 4 + 1 + 36 = 50, 50/4 = 12.5.
    advantage_BT = np.asarray([[1, 2, 3], [10, 99, 0], [0, 0, 0], [5, 5, 5]])
    mask_BT = [[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    want = np.zeros((4, 3))
    want[0] = [-0.8485281374, -0.5656854249, -0.2828427125]
    want[1, 0] = 1.6970562748
    got = self.whiten(advantage_BT.astype(np.float32), mask_BT)
    np.testing.assert_allclose(got, want, rtol=1e-6)

  @parameterized.parameters(1, 2, 4)
  def test_K13_G23_sharding_changes_nothing(self, devices):
    rng = np.random.default_rng(0)
    advantage_BT = rng.normal(2.0, 3.0, (4, 6)).astype(np.float32)
    mask_BT = rng.random((4, 6)) < 0.5
    mask_BT[2] = False  # A shard with nothing trained.
    mesh = jax.make_mesh((devices,), ('data',), devices=jax.devices()[:devices])
    place = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec('data')
    )
    sharded = jax.device_put((advantage_BT, mask_BT), place)
    np.testing.assert_array_equal(
        self.whiten(*sharded), self.whiten(advantage_BT, mask_BT)
    )

  def test_P3_rows_do_not_matter(self):
    advantage = np.asarray([1, 2, 3, 10], np.float32)
    one_row = self.whiten(advantage[None], np.ones((1, 4)))
    four_rows = np.full((4, 3), np.nan, np.float32)
    four_rows[:, 1] = advantage[::-1]
    got = self.whiten(four_rows, np.isfinite(four_rows))
    np.testing.assert_allclose(got[::-1, 1], one_row[0], rtol=1e-6)

  def test_K16_one_token_is_centred_to_zero(self):
    got = self.whiten(np.full((1, 3), 0.7, np.float32), [[0, 1, 0]])
    np.testing.assert_array_equal(got, np.zeros((1, 3)))

  @parameterized.parameters((2, 3), (0, 3))
  def test_K16_no_token_at_all(self, rows, length):
    for norm in normalise.NORMS:
      got, running = normalise.normalise(
          np.full((rows, length), np.nan, np.float32),
          joins(np.zeros((rows, length))),
          config=config(norm),
          sources=('s',),
          running={},
      )
      np.testing.assert_array_equal(got, np.zeros((rows, length)))
      self.assertEmpty(running)

  def test_G15_spread_of_rounding_is_centred_and_not_divided(self):
    # 100.3 in float32 with a deviation of 1e-5: far below 1e-6 * 100.3.
    advantage_BT = np.asarray([[100.3, 100.30001, 100.3]], np.float32)
    got = self.whiten(advantage_BT, np.ones((1, 3)))
    self.assertLess(np.abs(got).max(), 2e-5)
    # The same spread around 0 is 1e-5 > 1e-6, and is divided.
    got = self.whiten(advantage_BT - np.float32(100.3), np.ones((1, 3)))
    self.assertGreater(np.abs(got).max(), 1.0)

  def test_G17_eps_is_added_to_the_deviation(self):
    # 0 and 2: mean 1, deviation 1; 1 / (1 + 1) = 0.5.
    got = self.whiten(np.asarray([[0.0, 2.0]]), np.ones((1, 2)), eps=1.0)
    np.testing.assert_allclose(got, [[-0.5, 0.5]])

  def test_G17_none_still_clears_what_is_not_trained(self):
    advantage_BT = np.asarray([[1.5, np.inf, -2.0]], np.float32)
    got, _ = normalise.normalise(
        advantage_BT,
        joins([[1, 0, 1]]),
        config=config('none'),
        sources=('s',),
        running={},
    )
    np.testing.assert_array_equal(got, [[1.5, 0.0, -2.0]])

  def test_unknown_norm_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'advantage.norm.*batch.*group'):
      normalise.normalise(
          np.zeros((1, 1)),
          joins([[1]]),
          config=config('group'),
          sources=('s',),
          running={},
      )


class SourceTest(parameterized.TestCase):

  def step(self, values, running, source='a', min_count=2):
    """One batch of one source in one row."""
    values = np.asarray([values], np.float32)
    got, running = normalise.normalise(
        values,
        joins(np.ones(values.shape)),
        config=config('source', eps=0.0, min_count=min_count),
        sources=(source,),
        running=running,
    )
    return got[0], running

  def test_G17_sources_do_not_set_each_others_baseline(self):
    # a: 1 and 3, mean 2, deviation 1. b: 100 and 140, mean 120, deviation 20.
    got, _ = normalise.normalise(
        np.asarray([[1.0, 100.0, 3.0, 140.0]]),
        joins(np.ones((1, 4)), [[0, 1, 0, 1]], source_R=[0, 1]),
        config=config('source', eps=0.0, min_count=2),
        sources=('a', 'b'),
        running={},
    )
    np.testing.assert_allclose(got, [[-1.0, -1.0, 1.0, 1.0]])

  def test_G17_running_statistics_merge_batches(self):
    # 1 and 3, then 5, 5 and 6: mean 4, squares 9 + 1 + 1 + 1 + 4 = 16.
    _, running = self.step([1.0, 3.0], {})
    _, running = self.step([5.0, 5.0, 6.0], running)
    found = running['a']
    self.assertEqual(found.count, 5)
    self.assertAlmostEqual(found.mean, 4.0)
    self.assertAlmostEqual(found.squared_deviation, 16.0)

  def test_G17_a_small_source_uses_what_was_seen_before(self):
    seen = {'a': normalise.Statistics(20, 1.0, 20 * 4.0)}
    # Mean 1, deviation 2: (5 - 1) / 2. The present token is not in them.
    got, running = self.step([5.0], seen, min_count=2)
    np.testing.assert_allclose(got, [2.0])
    self.assertEqual(running['a'].count, 21)
    self.assertEqual(running['a'].raw, 0)

  def test_G17_a_source_seldom_seen_stays_raw_and_is_counted(self):
    seen = {'a': normalise.Statistics(19, 1.0, 19 * 4.0)}
    got, running = self.step([5.0], seen, min_count=2)
    np.testing.assert_array_equal(got, [5.0])
    self.assertEqual(running['a'].raw, 1)
    got, running = self.step([7.0], running, min_count=3)
    np.testing.assert_array_equal(got, [7.0])
    self.assertEqual(running['a'].raw, 2)

  def test_G17_running_statistics_without_spread_only_centre(self):
    seen = {'a': normalise.Statistics(20, 100.0, 20 * 1e-10)}
    got, _ = self.step([103.0], seen, min_count=2)
    np.testing.assert_allclose(got, [3.0])

  def test_the_given_statistics_are_not_changed(self):
    seen = {'a': normalise.Statistics(20, 1.0, 80.0)}
    self.step([5.0, 6.0], seen)
    self.assertEqual(seen, {'a': normalise.Statistics(20, 1.0, 80.0)})

  def test_a_source_that_is_absent_keeps_its_statistics(self):
    seen = {'b': normalise.Statistics(20, 1.0, 80.0)}
    _, running = self.step([5.0, 6.0], seen)
    self.assertEqual(running['b'], seen['b'])

  def test_L18_numbers_that_are_not_finite_do_not_spoil_the_statistics(self):
    got, running = self.step([1.0, np.nan], {'a': normalise.Statistics(2, 3.0)})
    self.assertTrue(np.isnan(got).all())
    self.assertEqual(running['a'], normalise.Statistics(2, 3.0))

  def test_other_norms_leave_the_statistics_alone(self):
    seen = {'a': normalise.Statistics(20, 1.0, 80.0)}
    for norm in ('none', 'batch'):
      _, running = normalise.normalise(
          np.ones((1, 2)),
          joins(np.ones((1, 2))),
          config=config(norm),
          sources=('a',),
          running=seen,
      )
      self.assertEqual(running, seen)

  def test_O7_state_survives_json_exactly(self):
    _, running = self.step([0.1, 1 / 3, 2e-7], {})
    _, running = self.step([5.0], running, source='b', min_count=64)
    content = json.loads(json.dumps(normalise.state(running)))
    self.assertEqual(normalise.from_state(content), running)
    self.assertEqual(normalise.from_state({}), {})


class NonfiniteTest(absltest.TestCase):

  def test_L18_G17_a_source_that_is_not_finite_leaves_no_trace(self):
    # Two sources of two tokens: the second holds a NaN.
    placed = joins([[1, 1, 1, 1]], [[0, 0, 1, 1]], source_R=(0, 1))
    _, running = normalise.normalise(
        np.float32([[1.0, 3.0, 2.0, np.nan]]),
        placed,
        config=config('source', min_count=2),
        sources=('a', 'b'),
        running={},
    )
    self.assertEqual(list(running), ['a'])
    self.assertEqual((running['a'].count, running['a'].mean), (2, 2.0))


if __name__ == '__main__':
  absltest.main()
