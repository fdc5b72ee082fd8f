"""One run, one work directory: leases on a disk and in a bucket."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import holding
from rl_tpu.checkpointing import lease
from rl_tpu.checkpointing import machine
from rl_tpu.types import stops
from tests import bucket as bucket_lib
from tests import processes

_FAST = lease.Timing(renew_s=0.05, dead_s=0.4, look_s=0.02)
# Holds a directory, says so, and waits to be killed.
_HOLDER = """
import sys, time
from rl_tpu.checkpointing import lease
held = lease.take(sys.argv[1])
print('held', flush=True)
time.sleep(600)
"""
_ENDS = """
import sys
from rl_tpu.checkpointing import lease
held = lease.take(sys.argv[1])
"""


def elsewhere(test: absltest.TestCase, name: str = 'other') -> None:
  """Lets `take` believe that this process is on another machine."""
  real = machine.here
  test.enter_context(mock.patch.object(
      machine, 'here',
      lambda: {**real(), 'host': name, 'machine': f'boot of {name}'},
  ))


class LeaseTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.bucket = bucket_lib.install(self)
    self.disk = os.path.join(self.create_tempdir().full_path, 'runs', 'first')

  def place(self, where: str) -> str:
    return self.disk if where == 'disk' else 'gs://bucket/runs/first'

  def asleep(self, held: lease.Lease) -> None:
    """What a stopped machine is to the others: nothing is renewed."""
    held._released.set()
    time.sleep(2 * _FAST.renew_s)

  def awake(self, held: lease.Lease) -> None:
    held._released.clear()

  @parameterized.parameters('disk', 'bucket')
  def test_a_directory_in_use_is_refused_in_one_line(self, where):
    workdir = self.place(where)
    held = lease.take(workdir)
    self.addCleanup(held.release)
    with self.assertRaisesRegex(
        ValueError, f'in use by process {os.getpid()} on .+ since 20.+ UTC;'
    ) as caught:
      lease.take(workdir)
    self.assertNotIn('\n', str(caught.exception))
    self.assertIn(f'--workdir={workdir}', str(caught.exception))

  @parameterized.parameters('disk', 'bucket')
  def test_a_holder_on_another_machine_is_seen_by_its_renewals(self, where):
    workdir = self.place(where)
    with self.subTest('alive'):
      elsewhere(self)
      held = lease.take(workdir, timing=_FAST)
      self.addCleanup(held.release)
      began = time.monotonic()
      with self.assertRaisesRegex(ValueError, 'on other since'):
        lease.take(workdir, timing=lease.Timing(0.05, 30.0, 0.02))
      self.assertLess(time.monotonic() - began, 10)

  @parameterized.parameters('disk', 'bucket')
  def test_a_lease_that_is_not_renewed_is_taken_over_and_said_so(self, where):
    workdir = self.place(where)
    with mock.patch.object(
        machine, '_machine', lambda: 'another boot'
    ):
      before = lease.take(workdir, timing=_FAST)
    self.asleep(before)
    with self.assertLogs(level='WARNING') as logged:
      after = lease.take(workdir, timing=_FAST)
    self.addCleanup(after.release)
    self.assertRegex(logged.output[-1], 'lease of process .* is dead; taken')
    after.check()
    # The sleeper wakes: its first check finds out, before it writes.
    self.awake(before)
    before._renewed_at -= 100
    with self.assertRaisesRegex(stops.WriteFailed, 'taken over by process'):
      before.check()
    # And takes nothing from the one who has it now.
    before.release()
    after.check()
    self.assertTrue(after._is_own())

  def test_an_old_lease_on_a_disk_is_not_waited_for(self):
    pathlib.Path(self.disk).mkdir(parents=True)
    path = pathlib.Path(self.disk) / 'lease-000007.json'
    path.write_text(json.dumps({'host': 'gone', 'pid': 1, 'machine': 'm'}))
    os.utime(path, (time.time() - 61,) * 2)
    slept = []
    held = lease.take(self.disk, sleep=slept.append)
    self.addCleanup(held.release)
    self.assertEmpty(slept)
    self.assertEqual(os.listdir(self.disk), ['lease-000008.json'])

  def test_a_young_lease_of_a_holder_that_cannot_be_asked_is_waited_for(self):
    pathlib.Path(self.disk).mkdir(parents=True)
    path = pathlib.Path(self.disk) / 'lease-000001.json'
    path.write_text('{"host": "far')  # Not whole yet.
    now = [machine.clock()]
    slept = []

    def sleep(seconds):
      slept.append(seconds)
      now[0] += seconds
      os.utime(path, (time.time() - len(slept),) * 2)

    # Its stamp changes at every look: somebody is there.
    with self.assertRaisesRegex(ValueError, 'in use'):
      lease.take(self.disk, sleep=sleep)
    self.assertLen(slept, 1)

  @parameterized.parameters('disk', 'bucket')
  def test_of_many_takers_of_a_dead_lease_one_wins(self, where):
    workdir = self.place(where)
    for turn in range(5):
      with mock.patch.object(machine, '_machine', lambda: 'another boot'):
        dead = lease.take(workdir, timing=_FAST)
      self.asleep(dead)
      won, refused = [], []
      gate = threading.Barrier(8)

      def work():
        gate.wait()
        try:
          won.append(lease.take(workdir, timing=_FAST))
        except ValueError as error:
          refused.append(str(error))

      threads = [threading.Thread(target=work) for _ in range(8)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
      self.assertLen(won, 1, f'{turn}: {refused}')
      self.assertLen(refused, 7)
      won[0].release()

  def test_many_processes_at_once_one_holds_it(self):
    takers = [
        subprocess.Popen(
            [sys.executable, '-c', _HOLDER, self.disk],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]
    for taker in takers:
      self.addCleanup(taker.communicate)
      self.addCleanup(taker.kill)
    deadline = time.monotonic() + 60
    while sum(t.poll() is not None for t in takers) < 3:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.05)
    (holder,) = [t for t in takers if t.poll() is None]
    self.assertEqual(holder.stdout.readline(), 'held\n')
    with self.assertRaisesRegex(ValueError, f'process {holder.pid} on'):
      lease.take(self.disk)
    # Killed, and not waited for yet: a zombie holds nothing.
    holder.kill()
    while machine._start(holder.pid):
      time.sleep(0.01)
    slept = []
    lease.take(self.disk, sleep=slept.append).release()
    self.assertEmpty(slept)

  def test_a_process_id_that_was_given_again_does_not_count(self):
    pathlib.Path(self.disk).mkdir(parents=True)
    path = pathlib.Path(self.disk) / 'lease-000001.json'
    path.write_text(json.dumps({**machine.here(), 'start': '1'}))
    slept = []
    lease.take(self.disk, sleep=slept.append).release()
    self.assertEmpty(slept)

  def test_same_ids_in_another_container_tell_nothing(self):
    other = {**machine.here(), 'machine': 'same boot pid:[1]', 'pid': 2**22}
    self.assertEqual(machine.state_of(other), machine.UNKNOWN)
    self.assertEqual(
        machine.state_of({**machine.here(), 'pid': 2**22}), machine.DEAD
    )
    self.assertEqual(machine.state_of(machine.here()), machine.ALIVE)

  @parameterized.parameters('disk', 'bucket')
  def test_it_lives_while_it_is_held_and_is_gone_afterwards(self, where):
    workdir = self.place(where)
    elsewhere(self)
    held = lease.take(workdir, timing=_FAST)
    time.sleep(2 * _FAST.dead_s)
    held.check()
    with self.assertRaisesRegex(ValueError, 'in use'):
      lease.take(workdir, timing=_FAST)
    held.release()
    self.assertEmpty(self.bucket.contents())
    self.assertFalse(os.path.exists(self.disk))

  def test_a_lease_that_was_deleted_stops_its_holder(self):
    held = lease.take(self.disk, timing=_FAST)
    self.addCleanup(held.release)
    (pathlib.Path(self.disk) / 'lease-000001.json').unlink()
    time.sleep(4 * _FAST.renew_s)
    with self.assertRaisesRegex(stops.WriteFailed, 'lease is gone'):
      held.check()

  def test_a_bucket_that_is_not_reached_for_long_stops_its_holder(self):
    held = lease.take('gs://bucket/run', timing=_FAST)
    self.addCleanup(held.release)
    with mock.patch.object(
        self.bucket, 'ls', side_effect=OSError('no route'), autospec=True
    ):
      with self.assertLogs(level='WARNING'):
        time.sleep(2 * _FAST.dead_s)
      with self.assertRaisesRegex(stops.WriteFailed, 'no route'):
        held.check()

  def test_the_thread_that_renews_keeps_no_process_alive(self):
    subprocess.run(
        [sys.executable, '-c', _ENDS, self.disk], check=True, timeout=60
    )

  def test_of_several_processes_the_lead_holds_it_alone(self):
    def run(hosts):
      try:
        with holding.held(self.disk, hosts) as check:
          check()
          found = hosts.of_lead(lambda: os.listdir(self.disk))
      except ValueError as error:
        found = str(error)
      hosts.exchange(None)
      return found

    self.assertEqual(
        processes.together(3, run), [['lease-000001.json']] * 3
    )
    held = lease.take(self.disk)
    self.addCleanup(held.release)
    for found in processes.together(3, run):
      self.assertRegex(found, 'in use by process')

  def test_what_a_stranger_wrote_is_shown_harmless(self):
    pathlib.Path(self.disk).mkdir(parents=True)
    path = pathlib.Path(self.disk) / 'lease-000001.json'
    path.write_text(
        json.dumps({**machine.here(), 'host': '\x1b[2J\u202eevil\n'})
    )
    with self.assertRaises(ValueError) as caught:
      lease.take(self.disk)
    self.assertTrue(str(caught.exception).isprintable())
    self.assertTrue(str(caught.exception).isascii())


if __name__ == '__main__':
  absltest.main()
