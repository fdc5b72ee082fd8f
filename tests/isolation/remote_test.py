"""Environments in processes: one fault costs one rollout."""

import time

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import protocol
from rl_tpu.isolation import errors
from rl_tpu.isolation import remote
from rl_tpu.records import records
from rl_tpu.types import termination as term
from tests.isolation import worlds


def task(kind: str) -> records.Task:
  return records.Task(kind, 's', 'f', 0, {'kind': kind})


class RemotePoolTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.module = worlds.install(self)

  def pool(
      self, workers: int, timeout_s: float = 10.0, **limits: float
  ) -> remote.RemotePool:
    made = remote.RemotePool(
        f'{self.module}:World',
        {'mark': 'hello'},
        workers=workers,
        timeout_s=timeout_s,
        **limits,
    )
    self.addCleanup(made.close)
    return made

  def acquire(self, made: remote.RemotePool) -> remote.Lease:
    """Waits for a place, as the runner does."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
      lease = made.acquire()
      if lease is not None:
        return lease
      time.sleep(0.005)
    raise AssertionError('no place became free')

  def test_a_users_environment_by_import_path(self):
    lease = self.acquire(self.pool(1))
    observation = lease.call('reset', (task('right'), 5)).result()
    self.assertEqual(observation.prompt, (protocol.Message('user', 'go'),))
    instruction = lease.call('instruction').result()
    self.assertEqual(instruction, (protocol.Message('system', 'hello'),))
    step = lease.call('step', (protocol.Action(' x\n'),)).result()
    self.assertEqual(step.end.kind, term.Termination.POLICY_STOP)
    self.assertEqual(lease.call('evidence').result(), {'kind': 'right'})

  def test_places_are_limited_and_come_back(self):
    made = self.pool(2)
    leases = [self.acquire(made) for _ in range(2)]
    self.assertIsNone(made.acquire())
    leases[0].release()
    self.acquire(made)
    self.assertIsNone(made.acquire())

  def test_every_lease_has_its_own_environment(self):
    made = self.pool(2)
    leases = [self.acquire(made) for _ in range(2)]
    pids = [lease.call('where').result()[0] for lease in leases]
    self.assertLen(set(pids), 2)
    leases[0].call('reset', (task('right'), 0)).result()
    leases[0].release()
    again = self.acquire(made)
    self.assertEqual(again.call('where').result()[0], pids[0])
    # The process is the same, the environment is a new one: never reset.
    self.assertEqual(again.call('evidence').result(), {'kind': None})

  def test_global_random_streams_stay_apart(self):
    made = self.pool(2)
    draws = []
    for order in ((0, 1), (1, 0)):
      leases = [self.acquire(made) for _ in range(2)]
      for seed in order:
        leases[seed].call('reset', (task('right'), seed)).result()
      steps = [
          lease.call('step', (protocol.Action('x'),)).result()
          for lease in leases
      ]
      draws.append([step.rewards['draw'] for step in steps])
      for lease in leases:
        lease.release()
    self.assertEqual(draws[0], draws[1])
    self.assertNotEqual(draws[0][0], draws[0][1])

  def test_K34_one_raises_one_never_returns(self):
    made = self.pool(4, timeout_s=1.0)
    for _ in range(2):  # The next step has four places again.
      leases = [self.acquire(made) for _ in range(4)]
      kinds = ('right', 'wrong', 'boom', 'hang')
      for lease, kind in zip(leases, kinds):
        lease.call('reset', (task(kind), 0)).result()
      start = time.monotonic()
      calls = [lease.call('step', (protocol.Action('x'),)) for lease in leases]
      ends, faults = [], []
      for call in calls:
        try:
          ends.append(call.result().end.kind)
        except errors.WorkerError as error:
          faults.append(type(error))
      self.assertLess(time.monotonic() - start, 5.0)
      self.assertEqual(ends, [term.Termination.POLICY_STOP] * 2)
      self.assertEqual(faults, [errors.CallFailed, errors.WorkerTimeout])
      for lease in leases:
        lease.release()

  def test_K34_all_fail(self):
    made = self.pool(4, timeout_s=1.0)
    leases = [self.acquire(made) for _ in range(4)]
    for lease, kind in zip(leases, ('boom', 'hang', 'die', 'hang')):
      lease.call('reset', (task(kind), 0)).result()
    calls = [lease.call('step', (protocol.Action('x'),)) for lease in leases]
    for call in calls:
      with self.assertRaises(errors.WorkerError):
        call.result()
    for lease in leases:
      lease.release()
    leases = [self.acquire(made) for _ in range(4)]
    for lease in leases:
      lease.call('reset', (task('right'), 0)).result()

  def test_after_a_fault_the_lease_reaches_no_other_environment(self):
    made = self.pool(1, timeout_s=1.0)
    lease = self.acquire(made)
    lease.call('reset', (task('die'), 0)).result()
    with self.assertRaisesRegex(errors.WorkerCrashed, 'code 3'):
      lease.call('step', (protocol.Action('x'),)).result()
    with self.assertRaises(errors.WorkerCrashed):
      lease.call('evidence').result()
    self.assertIsNone(made.acquire())
    lease.release()
    with self.assertRaisesRegex(RuntimeError, 'given back'):
      lease.call('evidence')
    lease.release()  # A second time is no error.
    self.acquire(made).call('reset', (task('right'), 0)).result()

  def test_a_busy_environment_that_is_given_back_is_ended(self):
    made = self.pool(1)
    lease = self.acquire(made)
    lease.call('reset', (task('hang'), 0)).result()
    lease.call('step', (protocol.Action('x'),))
    start = time.monotonic()
    lease.release()
    self.acquire(made).call('reset', (task('right'), 0)).result()
    self.assertLess(time.monotonic() - start, 8.0)

  @parameterized.parameters('stuck', 'torn')
  def test_a_close_that_fails_costs_no_rollout_and_is_counted(self, kind):
    made = self.pool(1, close_s=0.5)
    lease = self.acquire(made)
    lease.call('reset', (task(kind), 0)).result()
    lease.release()
    lease = self.acquire(made)
    lease.call('reset', (task('right'), 0)).result()
    self.assertEqual(made.close_faults, 1)
    lease.release()
    self.acquire(made)
    self.assertEqual(made.close_faults, 1)

  def test_settings_that_the_class_does_not_take_are_named(self):
    made = remote.RemotePool(f'{self.module}:World', {'marc': 1}, workers=1)
    self.addCleanup(made.close)
    with self.assertRaisesRegex(errors.CallFailed, 'marc.*mean mark'):
      self.acquire(made).call('reset', (task('right'), 0)).result()

  def test_closed_or_empty_pools_are_refused(self):
    made = self.pool(1)
    made.close()
    with self.assertRaisesRegex(RuntimeError, 'closed'):
      made.acquire()
    with self.assertRaisesRegex(ValueError, 'workers = 0'):
      remote.RemotePool('a:b', {}, workers=0)


if __name__ == '__main__':
  absltest.main()
