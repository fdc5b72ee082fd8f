"""E8: what groups can teach, and the chance of a difference."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.metrics import group_figures
from rl_tpu.metrics import tags
from tests import golden_io

_SEED = {c['id']: c for c in golden_io.cases('seed_worked')}


def group(*returns: float, family='f', solved=None, rate=None):
  return group_figures.Comparison(
      family=family,
      returns=returns,
      solved=tuple(r == 1.0 for r in returns) if solved is None else solved,
      rate=rate,
  )


class PMixTest(parameterized.TestCase):

  def test_E8_numbers_of_the_seed(self):
    case = _SEED['p-mix']
    size = case['input']['group_size']
    expected = case['expected']
    for p, want, percent in zip(
        case['input']['success_probability'],
        expected['p_mix'],
        expected['percent_1dp'],
        strict=True,
    ):
      found = group_figures.p_mix(p, size)
      self.assertAlmostEqual(found, want, places=12)
      self.assertEqual(f'{100 * found:.1f}', percent)
    for p, size in expected['raises_value_error']:
      with self.assertRaises(ValueError):
        group_figures.p_mix(p, size)

  def test_E8_edges(self):
    case = _SEED['p-mix-edges']
    for (p, size), want in zip(
        case['input']['pairs'], case['expected']['p_mix'], strict=True
    ):
      self.assertAlmostEqual(group_figures.p_mix(p, size), want, places=12)

  @parameterized.parameters(
      (0.5, -1), (0.5, 0), (0.5, True), (0.5, 2.0), (0.5, '8'), (0.5, None),
      (-1e-9, 8), (1.0000001, 8), (float('nan'), 8), (True, 8),
  )
  def test_E8_arguments_are_checked(self, p, size):
    with self.assertRaisesRegex(ValueError, 'must be'):
      group_figures.p_mix(p, size)


class FiguresTest(absltest.TestCase):

  def test_E8_shares_of_the_four_kinds_add_up_to_one(self):
    found = group_figures.figures(
        [
            group(0.0, 0.0),
            group(1.0, 1.0, 1.0),
            group(0.3, 0.3, 0.3),
            group(1.0, 0.0),
        ],
        std_floor=1e-6,
    )
    for name in ('all_zero', 'all_one', 'other_flat', 'mixed'):
      self.assertEqual(found[f'group/{name}'], 0.25, name)
    self.assertEqual(found['group/zero_spread'], 0.75)
    # 2, 3, 3 and 2 members; two of the ten have something to learn from.
    self.assertEqual(found['group/effective_size'], 2.5)
    self.assertEqual(found['group/useful_members'], 0.2)

  def test_E8_rounding_is_no_spread(self):
    self.assertEqual(
        group_figures.kind([0.1 + 0.2, 0.3], std_floor=1e-6), 'other_flat'
    )
    self.assertEqual(
        group_figures.kind([1.0, 1.0 - 1e-9], std_floor=1e-6), 'all_one'
    )
    self.assertEqual(group_figures.kind([1e-3, 0.0], std_floor=1e-6), 'mixed')

  def test_E8_expected_beside_observed(self):
    # 1 - .2^2 - .8^2 = .32 and 1 - .5^4 - .5^4 = .875; the third is unknown.
    found = group_figures.figures(
        [
            group(1.0, 0.0, rate=0.2),
            group(1.0, 1.0, 1.0, 1.0, rate=0.5),
            group(1.0, 1.0),
        ],
        std_floor=1e-6,
    )
    self.assertAlmostEqual(found['group/p_mix'], (0.32 + 0.875) / 2)
    self.assertAlmostEqual(found['group/p_mix_known'], 2 / 3)
    self.assertAlmostEqual(found['group/mixed_solved'], 1 / 3)

  def test_E8_outcomes_are_told_apart_from_returns(self):
    # Different returns, and nobody solved it: P_mix speaks of success.
    found = group_figures.figures(
        [group(0.5, 0.25, solved=(False, None))], std_floor=1e-6
    )
    self.assertEqual(found['group/mixed'], 1.0)
    self.assertEqual(found['group/mixed_solved'], 0.0)
    self.assertIsNone(found['group/p_mix'])

  def test_E8_by_task_family(self):
    found = group_figures.figures(
        [group(0.0, 0.0, family='a'), group(1.0, 0.0, family='b')],
        std_floor=1e-6,
    )
    self.assertEqual(found['group/all_zero'], 0.5)
    self.assertEqual(found['group/family/a/all_zero'], 1.0)
    self.assertEqual(found['group/family/b/all_zero'], 0.0)
    self.assertEqual(tags.unknown(found), [])
    self.assertEqual(group_figures.figures([], std_floor=1e-6), {})

  def test_E8_the_probability_is_labelled_as_one_of_a_difference(self):
    self.assertIn('difference', tags.described('group/p_mix'))
    self.assertIn('no forecast', tags.described('group/p_mix'))


if __name__ == '__main__':
  absltest.main()
