"""Suffix sums over packed segments against plain loops, in short chunks."""

import functools
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.advantages import affine
from rl_tpu.advantages import lanes as lanes_lib
from tests import golden_case
from tests import synthetic

ROWS, LENGTH = 8, 48


@functools.cache
def packed(seed: int):
  """Random rollouts in rows, and residuals at their transitions."""
  rng = np.random.default_rng(seed)
  case = synthetic.case(synthetic.random_rollouts(rng, 5))
  outcome = golden_case.run(case, row_length=LENGTH, rows=ROWS)
  joins = outcome.batch.segments.joins
  delta_BT = rng.normal(size=joins.reward_BT.shape).astype(np.float32)
  delta_BT = np.where(joins.transition_mask_BT, delta_BT, 0.0)
  rate_BT = rng.uniform(0.3, 1.1, delta_BT.shape).astype(np.float32)
  return outcome, joins, delta_BT, rate_BT


def by_loop(outcome, delta_BT, rate_BT, decay_BT, joined):
  """A_j = delta_j + c_j A_{j+1} by rollout, in float64."""
  columns = [
      outcome.by_rollout(x) for x in (delta_BT, rate_BT, decay_BT)
  ]
  found = {}
  for rollout in outcome.batch.rollouts:
    parts = sorted(
        zip(rollout.segments, *(c[rollout.rollout_id] for c in columns)),
        key=lambda part: part[0].segment_index,
    )
    out, ahead = [], 0.0
    for segment, *values in reversed(parts):
      ahead = ahead if joined else 0.0
      for act, delta, rate, decays in reversed(
          list(zip(segment.is_action, *values))
      ):
        if act:
          ahead = float(delta) + (float(rate) if decays else 1.0) * ahead
          out.append(ahead)
    found[rollout.rollout_id] = np.asarray(out[::-1])
  return found


class AffineTest(parameterized.TestCase):

  @parameterized.product(chunk=(8, 1, 64), joined=(True, False))
  def test_G9_the_two_levels_are_one_recursion(self, chunk, joined):
    outcome, joins, delta_BT, rate_BT = packed(0)
    rates = (affine.Rate(0.8), affine.Rate(0.0, rate_BT), affine.Rate(0.25))
    with mock.patch.object(lanes_lib, '_LENGTH', chunk):
      found = jax.jit(
          lambda joins, delta_BT: affine.suffix_sums(
              joins, delta_BT, rates, joined=joined
          )
      )(joins, delta_BT)
    for sum_BT, rate in zip(found, rates):
      sum_BT = np.asarray(sum_BT)
      values_BT = (
          np.full_like(delta_BT, rate.constant)
          if rate.value_BT is None
          else rate.value_BT
      )
      expected = by_loop(
          outcome, delta_BT, values_BT, joins.decay_BT, joined
      )
      got = outcome.actions(sum_BT)
      for rollout_id, column in expected.items():
        np.testing.assert_allclose(
            got[rollout_id], column, rtol=1e-4, atol=1e-5
        )
      off_BT = ~np.asarray(joins.transition_mask_BT)
      np.testing.assert_array_equal(sum_BT[off_BT], 0.0)

  @parameterized.parameters(1, 5, 47, 48, 64)
  def test_lanes_split_and_merge(self, chunk):
    with mock.patch.object(lanes_lib, '_LENGTH', chunk):
      lanes = lanes_lib.Lanes((3, LENGTH))
    array_BT = np.arange(1, 3 * LENGTH + 1, dtype=np.float32).reshape(3, -1)
    split_KM = np.asarray(lanes.split(array_BT))
    self.assertEqual(split_KM.shape, (lanes.length, lanes.count))
    self.assertEqual(lanes.count, 3 * lanes.per_row)
    self.assertEqual(lanes.per_row % 2, 1)
    np.testing.assert_array_equal(lanes.merge(split_KM), array_BT)
    # Every token stands at its running index; the rest is zeros, and a row
    # ends in one of them.
    flat = split_KM.T.reshape(-1)
    index = np.asarray(lanes.index(np.arange(3 * LENGTH)))
    np.testing.assert_array_equal(flat[index], array_BT.reshape(-1))
    self.assertEqual(np.count_nonzero(flat), 3 * LENGTH)
    ends = np.asarray(lanes.row_end(index)).reshape(3, LENGTH)
    np.testing.assert_array_equal(
        ends,
        np.repeat(np.arange(1, 4)[:, None] * lanes.padded - 1, LENGTH, 1),
    )
    np.testing.assert_array_equal(flat[ends], 0.0)


if __name__ == '__main__':
  absltest.main()
