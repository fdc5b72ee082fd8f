"""O2, O6: which versions a run takes, and which one its sampler serves."""

import types

from absl.testing import absltest

from rl_tpu.assembly import run
from rl_tpu.config import schema
from rl_tpu.metrics import phases


class Served:
  """A sampler that serves what it likes."""

  def __init__(self, version: int):
    self.version = version

  def update_weights(self, version, params, mode):
    pass


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

  def test_O6_the_sampler_serves_what_was_pushed(self):
    self_ = types.SimpleNamespace(
        clock=phases.PhaseClock(),
        config=schema.ExperimentConfig('test'),
        state=types.SimpleNamespace(policy_params=None),
        version=4,
        sampler=Served(5),
    )
    run.TrainingRun.publish(self_)
    self.assertEqual(self_.version, 5)
    with self.assertRaisesRegex(RuntimeError, 'version 6 was pushed'):
      run.TrainingRun.publish(self_)


if __name__ == '__main__':
  absltest.main()
