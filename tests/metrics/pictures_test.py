"""C5, C6: the pictures show what the figures say."""

import numpy as np
from absl.testing import absltest

from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import pictures
from rl_tpu.metrics import value_curves

RED = (255, 0, 0)


def places(pixels: np.ndarray, colour) -> np.ndarray:
  """(row, column) of every pixel of a colour."""
  return np.argwhere((pixels == colour).all(axis=-1))


class PicturesTest(absltest.TestCase):

  def chart(self, y, **line) -> np.ndarray:
    y = np.asarray(y, float)
    return pictures.chart(
        [pictures.Line('', np.arange(len(y), dtype=float), y, RED, **line)],
        x_label='x',
        y_label='y',
    )

  def test_C5_shape_and_kind(self):
    pixels = self.chart([0.0, 1.0])
    self.assertEqual(pixels.shape, (pictures.HEIGHT, pictures.WIDTH, 3))
    self.assertEqual(pixels.dtype, np.uint8)

  def test_C5_larger_numbers_stand_higher_and_further_right(self):
    found = places(self.chart([0.0, 1.0]), RED)
    left, right = found[found[:, 1].argmin()], found[found[:, 1].argmax()]
    self.assertGreater(left[0], right[0] + 200)
    self.assertGreater(right[1], left[1] + 300)

  def test_C5_what_is_no_number_is_left_out(self):
    whole = places(self.chart([0.0, 0.5, 1.0]), RED)
    gap = places(self.chart([0.0, np.nan, np.nan]), RED)
    self.assertGreater(np.ptp(whole[:, 1]), 300)
    self.assertLess(np.ptp(gap[:, 1]), 10)
    self.assertEmpty(places(self.chart([np.nan, np.nan]), RED))

  def test_C6_intervals_are_drawn(self):
    y = [0.5, 0.5]
    low, high = np.asarray([0.0, 0.4]), np.asarray([1.0, 0.6])
    bare = places(self.chart(y), RED)
    found = places(self.chart(y, low=low, high=high), RED)
    self.assertLess(np.ptp(bare[:, 0]), 10)
    self.assertGreater(np.ptp(found[:, 0]), 200)

  def test_C5_C6_both_pictures_of_a_batch(self):
    rng = np.random.default_rng(0)
    n = 60
    table = diagnostics.CriticTable(
        value=rng.random(n),
        target=rng.random(n),
        rollout=np.repeat(['a', 'b', 'c', 'd'], 15),
        action_index=np.tile(np.arange(15), 4),
        length=np.full(n, 15),
        bootstrapped=np.zeros(n, bool),
        termination=np.full(n, 'success'),
        source=np.full(n, 's'),
        family=np.full(n, 'f'),
    )
    solved = {'a': True, 'b': True, 'c': False, 'd': False}
    matched = value_curves.compare(
        value_curves.curves(table, solved, {}), seed=0
    )
    curve = diagnostics.calibration(table)
    for pixels in (pictures.calibration(curve), pictures.matched(matched)):
      self.assertGreater(len(np.unique(pixels.reshape(-1, 3), axis=0)), 4)
    # One token in ten bins: empty bins have no mean and draw nothing.
    one = diagnostics.calibration(table.where(np.arange(n) < 1))
    self.assertEqual(pictures.calibration(one).shape[2], 3)


if __name__ == '__main__':
  absltest.main()
