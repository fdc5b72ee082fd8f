"""L8, L9, L10, L11, K11, K12: what a token's loss is divided by."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.losses import aggregation
from rl_tpu.losses import by_id
from rl_tpu.types import batch as batch_lib
from tests import golden_io
from tests.losses import cases

CASES = cases.load()
# Everything but segment_mean keeps its meaning when a segment is cut (L11).
UNCUT = tuple(m for m in aggregation.MODES if m != 'segment_mean')


def weights(mask, segment, rollout, task, mode, constant=1.0):
  return aggregation.weights(
      np.asarray(mask, bool),
      segment=np.asarray(segment),
      rollout=np.asarray(rollout),
      task=np.asarray(task),
      mode=mode,
      constant=constant,
  )


def case_weights(case, mode):
  return weights(
      case.mask_BT, case.segment_BT, case.rollout_BT, case.task_BT, mode,
      case.config['loss_constant'],
  )


@functools.partial(jax.jit, static_argnames='mode')
def _on_device(mask_BT, segment_BT, origin, constant, *, mode):
  size = origin.rollout_N.shape[0]
  count_N = by_id.segment_sum(
      jnp.ones(mask_BT.shape), mask_BT, segment_BT, size=size
  )
  weight_N = aggregation.segment_weights(
      count_N, origin, mode=mode, constant=constant
  )
  return jnp.where(mask_BT, by_id.at_tokens(weight_N, segment_BT), 0.0)


def on_device(mask_BT, segment_BT, origin, mode, constant):
  """The weights from counts by dense id."""
  return np.asarray(
      _on_device(mask_BT, segment_BT, origin, constant, mode=mode)
  )


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(*CASES)
  def test_L8_weights_and_totals(self, case):
    for mode in aggregation.MODES:
      expected = case.expected['aggregate'][mode]
      weight_BT = case_weights(case, mode)
      self.assertEqual(weight_BT.dtype, np.float32)
      want = np.asarray(expected['weights'])
      golden_io.assert_close(
          weight_BT.ravel()[: len(want)], want, name=mode
      )
      np.testing.assert_array_equal(weight_BT.ravel()[len(want):], 0.0)
      # Golden terms under our weights: only the weights can be wrong.
      weight = case.trained(weight_BT).astype(np.float64)
      for name in ('ppo', 'dual', 'value', 'k1', 'k2', 'k3', 'k2_importance'):
        total = np.sum(weight * case.per_token(name))
        golden_io.assert_close(total, expected[name], name=f'{mode} {name}')
      slope = weight * case.per_token('ppo_grad')
      want = np.asarray(expected['ppo_grad_logp'])[case.trained_places()]
      golden_io.assert_close(slope, want, name=mode)

  @parameterized.named_parameters(*CASES)
  def test_L10_gated_tokens_stay_in_the_denominator(self, case):
    # dis is 0 where it is gated, and the weights are those of all tokens.
    for mode in aggregation.MODES:
      total = np.sum(
          case.trained(case_weights(case, mode)) * case.per_token('dis')
      )
      golden_io.assert_close(total, case.expected['aggregate'][mode]['dis'])


  @parameterized.named_parameters(*CASES)
  def test_L8_the_device_counts_as_the_host_does(self, case):
    for mode in aggregation.MODES:
      want = np.asarray(case.expected['aggregate'][mode]['weights'])
      found = on_device(
          case.mask_BT, case.segment_BT, case.origin(), mode,
          case.config['loss_constant'],
      )
      golden_io.assert_close(found.ravel()[: len(want)], want, name=mode)

  @parameterized.named_parameters(*CASES)
  def test_L10_renormalised_weights(self, case):
    origin = case.origin()
    for mode in aggregation.MODES:
      expected = case.expected['aggregate'][mode]['renormalised']
      for name, flag in (
          ('dis', 'dis_keep'), ('ppo_mis', 'mis_keep'),
          ('ppo_seq_mis', 'seq_mis_keep'),
      ):
        keep_BT = case.mask_BT.copy()
        keep_BT[case.mask_BT] = case.per_token(flag) != 0
        found = on_device(
            keep_BT, case.segment_BT, origin, mode,
            case.config['loss_constant'],
        )
        want = np.asarray(expected[name]['weights'])
        golden_io.assert_close(
            found.ravel()[: len(want)], want, name=f'{mode} {name}'
        )


class WeightsTest(parameterized.TestCase):

  def test_L8_example_of_the_seed(self):
    # Two tasks with 2 and 6 tokens, losses 1 and 3: 2 against 2.5.
    (case,) = [
        c
        for c in golden_io.cases('seed_worked')
        if 'task_tokens' in c['input']
    ]
    counts, losses = case['input']['task_tokens'], case['input']['task_loss']
    ids, loss = np.repeat([0, 1], counts), np.repeat(losses, counts)
    for mode, expected in case['expected'].items():
      weight = weights(
          np.ones(8), ids, ids, ids, mode, case['input']['loss_constant']
      )
      self.assertAlmostEqual(float(weight @ loss), expected, places=6, msg=mode)

  def test_L8_every_mode_by_hand(self):
    # Rollout 0 of task 0: segments 0 (2 tokens) and 1 (1); rollout 1 of task
    # 0: segment 2 (1); rollout 2 of task 1: segment 3 (2, one of them masked).
    segment = [0, 0, 1, 2, 3, 3]
    rollout = [0, 0, 0, 1, 2, 2]
    task = [0, 0, 0, 0, 1, 1]
    mask = [1, 1, 1, 1, 1, 0]
    for mode, want in {
        'token': [1 / 5] * 5,
        'segment_mean': [1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 4],
        'rollout_mean': [1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3],
        'task_mean': [1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 2],
        'task_rollout_mean': [1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 2],
        'constant': [1 / 30] * 5,
    }.items():
      found = weights(mask, segment, rollout, task, mode, constant=10.0)
      np.testing.assert_allclose(found, [*want, 0.0], rtol=1e-6, err_msg=mode)

  def test_K12_only_trained_tokens_divide(self):
    # Losses 1.5 and .5 of 5 response tokens, and three of 1: 5/5, with a tool
    # result of 3 or of 1003 tokens.
    for gap in (3, 1003):
      mask = np.concatenate([[1], np.zeros(gap), [1], np.ones(3)])
      loss = np.concatenate([[1.5], np.full(gap, 99.0), [0.5], np.ones(3)])
      ids = np.repeat([0, 1], [gap + 2, 3])
      found = weights(mask, ids, ids, ids, 'token')
      self.assertAlmostEqual(float(found @ loss), 1.0, places=6)

  def test_L9_nothing_trained(self):
    for mode in aggregation.MODES:
      for size in (0, 3):
        ids = np.full(size, -1)
        found = weights(np.zeros(size), ids, ids, ids, mode)
        np.testing.assert_array_equal(found, np.zeros(size))

  @parameterized.parameters(*UNCUT)
  def test_L11_a_cut_changes_no_weight(self, mode):
    whole, parts = self.split(mode)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)

  def test_L11_a_cut_changes_segment_mean(self):
    # Two segments of 4 and 2: 1/8 and 1/4. Cut in three: 1/9, 1/3 and 1/6.
    whole, parts = self.split('segment_mean')
    np.testing.assert_allclose(whole, [1 / 8] * 4 + [1 / 4] * 2, rtol=1e-6)
    np.testing.assert_allclose(
        parts, [1 / 9] * 3 + [1 / 3] + [1 / 6] * 2, rtol=1e-6
    )

  def split(self, mode):
    rollout, mask = [0, 0, 0, 0, 1, 1], np.ones(6)
    whole = weights(mask, rollout, rollout, rollout, mode)
    parts = weights(mask, [0, 0, 0, 1, 2, 2], rollout, rollout, mode)
    return whole, parts

  @parameterized.parameters(*aggregation.MODES)
  def test_L11_order_padding_and_ids_change_no_weight(self, mode):
    rng = np.random.default_rng(1)
    segment = np.sort(rng.integers(0, 6, 40))
    rollout, task = segment // 2, segment // 4
    mask = rng.random(40) < 0.6
    whole = weights(mask, segment, rollout, task, mode, 7.0)
    order = rng.permutation(40)
    shuffled = weights(
        mask[order], segment[order], rollout[order], task[order], mode, 7.0
    )
    np.testing.assert_allclose(shuffled, whole[order], rtol=1e-6)
    pad = lambda x: np.concatenate([x, np.full(9, -1)])
    padded = weights(
        np.concatenate([mask, np.zeros(9)]), pad(segment), pad(rollout),
        pad(task), mode, 7.0,
    )
    np.testing.assert_array_equal(padded[:40], whole)
    # Ids of a minibatch are not 0..n-1: others of the batch lie between.
    sparse = weights(mask, 3 * segment, 3 * rollout, 3 * task, mode, 7.0)
    np.testing.assert_allclose(sparse, whole, rtol=1e-6)

  def test_L8_a_task_of_one_token_counts_on_the_device(self):
    # Task 0 has 3 tokens in rollouts of 2 and 1, task 1 has one.
    origin = batch_lib.Origin(
        rollout_N=jnp.asarray([0, 1, 2, -1]),
        task_R=jnp.asarray([0, 0, 1, -1]),
    )
    for mode, want in {
        'task_mean': [1 / 6, 1 / 6, 1 / 2],
        'task_rollout_mean': [1 / 8, 1 / 4, 1 / 2],
        'rollout_mean': [1 / 6, 1 / 3, 1 / 3],
    }.items():
      found = aggregation.segment_weights(
          jnp.asarray([2.0, 1.0, 1.0, 0.0]), origin, mode=mode
      )
      np.testing.assert_allclose(found, [*want, 0.0], rtol=1e-6, err_msg=mode)

  @parameterized.parameters(*aggregation.MODES)
  def test_L9_L10_all_gated_gives_0_on_the_device(self, mode):
    origin = batch_lib.Origin(
        rollout_N=jnp.asarray([0, 1, -1]), task_R=jnp.asarray([0, 0, -1])
    )
    found = aggregation.segment_weights(
        jnp.zeros(3), origin, mode=mode, constant=4.0
    )
    np.testing.assert_array_equal(found, np.zeros(3))

  def test_unknown_mode_is_refused(self):
    with self.assertRaisesRegex(ValueError, "loss.aggregation.*'mean'"):
      weights([1], [0], [0], [0], 'mean')
    with self.assertRaisesRegex(ValueError, "loss.aggregation.*'mean'"):
      aggregation.segment_weights(jnp.zeros(1), None, mode='mean')


if __name__ == '__main__':
  absltest.main()
