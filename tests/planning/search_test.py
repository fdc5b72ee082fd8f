"""Sweeps: what is planned, what is left out and why."""

import dataclasses
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import loading
from rl_tpu.planning import search

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class FakePlan:
  """Whether a plan of these settings fits."""

  fits: bool


def config():
  return loading.load_experiment(ROOT / 'experiments' / 'qwen3_8b_agent.py')


class SweepTest(parameterized.TestCase):

  def test_combinations_from_little_memory_to_much(self):
    rows = config().batching.rows_per_microbatch
    found = search.combinations(config(), ['remat', 'microbatch'], 64)
    self.assertEqual(
        [one.changes for one in found],
        [
            (f'model.remat={kind}', f'batching.rows_per_microbatch={n}')
            for kind in ('layer', 'attention', 'none')
            for n in (rows // 2, rows, rows * 2)
        ],
    )

  def test_meshes_use_all_devices_and_put_slices_on_data(self):
    for one in search.combinations(config(), ['mesh'], 16, slices=2):
      sizes = dict(change.split('=') for change in one.changes)
      self.assertEqual(sizes['mesh.data'], '2')
      product = 1
      for size in sizes.values():
        product *= int(size)
      self.assertEqual(product, 16)

  @parameterized.parameters(
      # What fits, of (remat, rows) as ranks -> which are planned.
      (lambda remat, rows: True, 9),
      (lambda remat, rows: False, 1),
      # (0, 0) fits; (0, 1), which does not, stands for all with more rows;
      # (1, 0) does not, which stands for (2, 0).
      (lambda remat, rows: remat + rows == 0, 3),
      (lambda remat, rows: rows < 1, 4),
  )
  def test_what_needs_more_than_one_too_large_is_not_planned(
      self, fits, planned
  ):
    wanted = search.combinations(config(), ['remat', 'microbatch'], 64)
    ranks = {
        ('layer', 'attention', 'none')[one.ranks[0]]: one.ranks[0]
        for one in wanted
    }
    smallest = config().batching.rows_per_microbatch // 2
    made = []

    def planner(changed):
      rows = {1: 0, 2: 1, 4: 2}[
          changed.batching.rows_per_microbatch // smallest
      ]
      made.append(changed)
      return FakePlan(fits(ranks[changed.model.remat], rows))

    trials = list(search.sweep(config(), wanted, planner))
    self.assertLen(trials, 9)
    self.assertLen(made, planned)
    for one, trial in zip(wanted, trials):
      self.assertEqual(trial.made is None, 'too large' in trial.reason)
      if fits(*one.ranks):
        self.assertTrue(trial.made.fits)

  def test_another_mesh_is_planned_whatever_the_first_did(self):
    wanted = search.combinations(config(), ['mesh', 'remat'], 64)
    planned = []

    def planner(changed):
      planned.append(changed.mesh.tensor)
      return FakePlan(changed.mesh.tensor == 8)

    list(search.sweep(config(), wanted, planner))
    self.assertEqual(planned, [1, 2, 4, 8, 8, 8])

  def test_a_refusal_is_told_and_the_others_go_on(self):
    wanted = search.combinations(config(), ['remat'], 64)

    def planner(changed):
      if changed.model.remat == 'attention':
        raise ValueError('no such thing')
      return FakePlan(True)

    trials = list(search.sweep(config(), wanted, planner))
    self.assertEqual([t.made is None for t in trials], [False, True, False])
    self.assertEqual(trials[1].reason, 'refused: no such thing')


if __name__ == '__main__':
  absltest.main()
