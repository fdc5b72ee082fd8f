"""O2, O6: which versions a run takes."""

import types

from absl.testing import absltest

from rl_tpu.assembly import run
from rl_tpu.metrics import phases


class VersionsTest(absltest.TestCase):

  def test_O6_versions_that_were_never_served_are_unknown(self):
    given = {}

    class Stop(Exception):
      pass

    def admit(rollouts, collect, **context):
      given.update(context)
      raise Stop

    self_ = types.SimpleNamespace(
        clock=phases.PhaseClock(),
        gathering=types.SimpleNamespace(admit=admit),
        collect=None,
        version=3,
        _behaviour_kl='measure',
    )
    with self.assertRaises(Stop):
      run.TrainingRun.admit(self_, [])
    self.assertEqual(given['current_version'], 3)
    known = [v for v in range(-1, 6) if v in given['known_versions']]
    self.assertEqual(known, [0, 1, 2, 3])
    self.assertEqual(given['measure_kl'], 'measure')


if __name__ == '__main__':
  absltest.main()
