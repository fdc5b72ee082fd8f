"""O6: a dead or stale sampler is noticed, restarted, and gets its weights."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import serving as serving_lib
from rl_tpu.config import schema
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.sharding import hosts as hosts_lib
from rl_tpu.types import stops


class _Sampler:
  """Fails in its first `faults` publications: it raises, or serves the old."""

  def __init__(self, *, raises=0, stale=0):
    self.version = 3
    self.params = 'params 3'
    self.resets = 0
    self._raises, self._stale = raises, stale

  def update_weights(self, version, params, mode):
    if self._raises:
      self._raises -= 1
      raise RuntimeError('the device is gone')
    if self._stale:
      self._stale -= 1
      return
    self.version, self.params = version, params

  def reset(self):
    self.resets += 1
    self.version = self.params = None


class _Fails:
  """Collects, after so many faults of the sampler; counts its calls."""

  def __init__(self, faults):
    self._faults = faults
    self.calls = 0

  def __call__(self):
    self.calls += 1
    if self._faults:
      self._faults -= 1
      raise runner_lib.SamplerFault('RuntimeError: gone') from RuntimeError()
    return ['rollout']


class ServingTest(parameterized.TestCase):

  def serving(self, sampler, restarts=1, hosts=hosts_lib.ALONE):
    return serving_lib.Serving(
        sampler, schema.FaultsConfig(sampler_restarts=restarts), hosts
    )

  def test_O6_the_sampler_serves_what_was_pushed(self):
    sampler = _Sampler()
    made = self.serving(sampler)
    made.publish(4, 'params 4', 'drain')
    self.assertEqual((sampler.version, sampler.params), (4, 'params 4'))
    self.assertEqual((made.restarts, sampler.resets), (0, 0))

  @parameterized.parameters({'raises': 1}, {'stale': 1})
  def test_O6_one_that_does_not_is_restarted_and_gets_them_again(self, **how):
    sampler = _Sampler(**how)
    made = self.serving(sampler)
    with self.assertLogs(level='ERROR'):
      made.publish(4, 'params 4', 'drain')
    self.assertEqual((sampler.version, sampler.params), (4, 'params 4'))
    self.assertEqual((made.restarts, sampler.resets), (1, 1))

  @parameterized.parameters(
      ({'raises': 2}, 'the device is gone'),
      ({'stale': 2}, 'version 4 was pushed, but the sampler serves None'),
  )
  def test_O6_one_that_fails_again_stops_the_run(self, how, message):
    made = self.serving(_Sampler(**how))
    with self.assertRaisesRegex(stops.RunStopped, message) as caught:
      made.publish(4, 'params 4', 'drain')
    self.assertIn('faults.sampler_restarts', str(caught.exception))

  def test_O6_a_collection_whose_sampler_fails_begins_anew(self):
    sampler, collect = _Sampler(), _Fails(1)
    made = self.serving(sampler)
    found = made.collect(collect, version=3, params='params 3')
    self.assertEqual((found, collect.calls), (['rollout'], 2))
    self.assertEqual((sampler.version, sampler.params), (3, 'params 3'))
    self.assertEqual(made.restarts, 1)

  def test_O6_nothing_is_collected_from_a_stale_sampler(self):
    sampler, collect = _Sampler(), _Fails(0)
    made = self.serving(sampler)
    made.collect(collect, version=4, params='params 4')
    self.assertEqual((sampler.version, sampler.params), (4, 'params 4'))
    self.assertEqual((made.restarts, collect.calls), (1, 1))

  def test_O6_restarts_are_counted_by_update(self):
    made = self.serving(_Sampler())
    for _ in range(3):
      made.begin()
      made.collect(_Fails(1), version=3, params='params 3')
    self.assertEqual(made.restarts, 3)
    with self.assertRaises(stops.RunStopped):
      made.collect(_Fails(1), version=3, params='params 3')

  def test_O6_no_restart_may_be_asked_for(self):
    made = self.serving(_Sampler(), restarts=0)
    with self.assertRaises(stops.RunStopped):
      made.collect(_Fails(1), version=3, params='params 3')

  def test_one_of_several_processes_leaves_with_what_was_raised(self):
    hosts = hosts_lib.Hosts(0, 2, lambda data: [data, data])
    sampler = _Sampler(raises=1)
    made = self.serving(sampler, hosts=hosts)
    with self.assertRaisesRegex(RuntimeError, '^$'):
      made.collect(_Fails(1), version=3, params='params 3')
    with self.assertRaisesRegex(RuntimeError, 'the device is gone'):
      made.publish(4, 'params 4', 'drain')
    self.assertEqual(sampler.resets, 0)


if __name__ == '__main__':
  absltest.main()
