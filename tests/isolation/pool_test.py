"""Calls in worker processes: limits, crashes, replacement."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.isolation import errors
from rl_tpu.isolation import pool
from rl_tpu.types import termination as term
from tests.isolation import worlds


def is_running(pid: int) -> bool:
  """True while a process exists and is no zombie."""
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8')
  except FileNotFoundError:
    return False
  return text.rsplit(')', 1)[1].split()[0] != 'Z'


def wait_until(condition, timeout_s: float = 10.0) -> bool:
  """True as soon as the condition holds; False after the time is up."""
  deadline = time.monotonic() + timeout_s
  while time.monotonic() < deadline:
    if condition():
      return True
    time.sleep(0.01)
  return False


class CallPoolTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.module = worlds.install(self)

  def pool(self, workers: int = 1, **settings) -> pool.CallPool:
    made = pool.CallPool(workers, **settings)
    self.addCleanup(made.close)
    return made

  def submit(self, made, name, *args, timeout_s=10.0):
    return made.submit(f'{self.module}:{name}', args, timeout_s=timeout_s)

  def test_answers_belong_to_their_calls(self):
    made = self.pool(2)
    calls = [self.submit(made, 'add', i, 100) for i in range(20)]
    self.assertEqual([c.result() for c in calls], [i + 100 for i in range(20)])

  def test_workers_are_other_processes_and_run_side_by_side(self):
    made = self.pool(2)
    calls = [self.submit(made, 'slow_then', i) for i in range(2)]
    pids = {self.submit(made, 'pid').result() for _ in range(4)}
    self.assertNotIn(os.getpid(), pids)
    self.assertEqual([c.result() for c in calls], [0, 1])

  def test_workers_do_not_load_jax(self):
    self.assertFalse(self.submit(self.pool(), 'has_jax').result())

  @parameterized.parameters('hang', 'spin')
  def test_K34_a_hung_call_is_ended_and_its_place_is_free(self, name):
    made = self.pool()
    hung = self.submit(made, name, timeout_s=0.5)
    behind = self.submit(made, 'add', 1, 2)
    start = time.monotonic()
    with self.assertRaises(errors.WorkerTimeout) as caught:
      hung.result()
    self.assertEqual(caught.exception.fault_cause, term.FaultCause.TIMEOUT)
    self.assertIsInstance(caught.exception, TimeoutError)
    self.assertEqual(behind.result(), 3)
    self.assertLess(time.monotonic() - start, 5.0)

  def test_asking_one_call_moves_the_others_along(self):
    made = self.pool(2)
    hung = self.submit(made, 'hang', timeout_s=0.5)
    calls = [self.submit(made, 'slow_then', i) for i in range(3)]
    self.assertEqual([c.result() for c in calls], [0, 1, 2])
    self.assertTrue(wait_until(calls[0].done))
    self.assertTrue(wait_until(hung.done))

  def test_what_a_hung_call_started_ends_with_it(self):
    made = self.pool()
    path = pathlib.Path(self.create_tempdir().full_path) / 'pid'
    call = self.submit(made, 'hang_with_child', str(path), timeout_s=2.0)
    with self.assertRaises(errors.WorkerTimeout):
      call.result()
    child = int(path.read_text())
    self.assertTrue(wait_until(lambda: not is_running(child)))

  def test_exceptions_come_back_with_their_text(self):
    made = self.pool()
    before = self.submit(made, 'pid').result()
    call = self.submit(made, 'boom')
    with self.assertRaises(errors.CallFailed) as caught:
      call.result()
    self.assertIn("KeyError: 'lost'", str(caught.exception))
    self.assertIn('in boom', str(caught.exception))
    self.assertIsNone(caught.exception.fault_cause)
    # An exception does not cost the process.
    self.assertEqual(self.submit(made, 'pid').result(), before)

  def test_out_of_memory_has_its_own_cause(self):
    with self.assertRaises(errors.CallFailed) as caught:
      self.submit(self.pool(), 'exhausted').result()
    self.assertEqual(caught.exception.fault_cause, term.FaultCause.MEMORY)

  def test_a_worker_that_takes_too_much_memory_is_replaced(self):
    made = self.pool(memory_gib=2.0)
    before = self.submit(made, 'pid').result()
    with self.assertRaises(errors.CallFailed) as caught:
      self.submit(made, 'greedy').result()
    self.assertEqual(caught.exception.fault_cause, term.FaultCause.MEMORY)
    self.assertNotEqual(self.submit(made, 'pid').result(), before)

  @parameterized.parameters('pipe', 'reset')
  def test_a_lost_connection_of_user_code_is_of_the_network(self, kind):
    made = self.pool()
    before = self.submit(made, 'pid').result()
    with self.assertRaisesRegex(errors.CallFailed, 'gone') as caught:
      self.submit(made, 'unplugged', kind).result()
    self.assertEqual(caught.exception.fault_cause, term.FaultCause.NETWORK)
    self.assertEqual(self.submit(made, 'pid').result(), before)

  def test_a_process_that_is_killed_from_outside(self):
    made = self.pool()
    pid = self.submit(made, 'pid').result()
    call = self.submit(made, 'hang')
    os.kill(pid, signal.SIGKILL)
    with self.assertRaisesRegex(errors.WorkerCrashed, 'SIGKILL') as caught:
      call.result()
    self.assertEqual(caught.exception.fault_cause, term.FaultCause.MEMORY)
    self.assertEqual(self.submit(made, 'add', 1, 1).result(), 2)

  @parameterized.parameters(
      ('noise', 'its answer is none'),
      ('another_object', 'no answer'),
  )
  def test_what_is_no_answer_costs_the_process_alone(self, name, message):
    made = self.pool()
    with self.assertRaisesRegex(errors.WorkerCrashed, message):
      self.submit(made, name).result()
    self.assertEqual(self.submit(made, 'add', 1, 1).result(), 2)

  def test_half_an_answer_holds_nobody_up(self):
    made = self.pool(2)
    torn = self.submit(made, 'half_an_answer', timeout_s=1.0)
    self.assertEqual(self.submit(made, 'slow_then', 7).result(), 7)
    self.assertFalse(torn.done())
    with self.assertRaises(errors.WorkerTimeout):
      torn.result()

  def test_a_process_that_is_stopped_holds_nobody_up(self):
    made = self.pool(startup_s=3.0)
    pid = self.submit(made, 'pid').result()
    os.kill(pid, signal.SIGSTOP)
    with self.assertRaisesRegex(errors.WorkerTimeout, 'set-up of the call'):
      self.submit(made, 'add', 1, 1).result()

  def test_an_exit_is_an_exception(self):
    made = self.pool()
    with self.assertRaisesRegex(errors.CallFailed, 'SystemExit'):
      self.submit(made, 'leave').result()
    self.assertEqual(self.submit(made, 'add', 1, 1).result(), 2)

  def test_a_crash_is_told_and_the_process_replaced(self):
    made = self.pool()
    with self.assertRaisesRegex(errors.WorkerCrashed, 'code 3'):
      self.submit(made, 'die').result()
    self.assertEqual(self.submit(made, 'add', 1, 1).result(), 2)

  @parameterized.parameters('unreadable', 'unreadable_there')
  def test_a_result_that_cannot_travel_is_an_error(self, name):
    made = self.pool()
    with self.assertRaisesRegex(errors.CallFailed, 'cannot be sent'):
      self.submit(made, name).result()
    self.assertEqual(self.submit(made, 'add', 1, 1).result(), 2)

  def test_prints_do_not_disturb(self):
    self.assertEqual(self.submit(self.pool(), 'talk').result(), 'answer')

  def test_an_unknown_function_is_named(self):
    made = self.pool()
    with self.assertRaisesRegex(errors.CallFailed, 'has no ad;.*mean add'):
      self.submit(made, 'ad').result()

  def test_imports_are_not_part_of_the_limit(self):
    path = pathlib.Path(sys.path[0]) / 'slow_import.py'
    path.write_text('import time\ntime.sleep(1.0)\ndef one(): return 1\n')
    call = self.pool().submit('slow_import:one', timeout_s=0.5)
    self.assertEqual(call.result(), 1)

  def test_a_start_has_a_limit_of_its_own(self):
    path = pathlib.Path(sys.path[0]) / 'endless_import.py'
    path.write_text('import time\ntime.sleep(10_000)\n')
    made = self.pool(preload=('endless_import',), startup_s=0.5)
    with self.assertRaisesRegex(errors.WorkerTimeout, 'its start .* 0.5 s'):
      self.submit(made, 'add', 1, 1).result()

  def test_a_worker_that_cannot_start_fails_its_calls(self):
    made = self.pool(preload=('no_such_module',))
    for _ in range(2):
      with self.assertRaisesRegex(errors.WorkerCrashed, 'no_such_module'):
        self.submit(made, 'add', 1, 1).result()

  def test_closing_ends_processes_and_open_calls(self):
    made = self.pool()
    pid = self.submit(made, 'pid').result()
    running = self.submit(made, 'hang')
    queued = self.submit(made, 'add', 1, 1)
    made.close()
    self.assertFalse(is_running(pid))
    for call in (running, queued):
      self.assertTrue(call.done())
      with self.assertRaises(errors.WorkerCrashed):
        call.result()
    with self.assertRaisesRegex(RuntimeError, 'closed'):
      self.submit(made, 'add', 1, 1)

  def test_workers_end_with_a_parent_that_was_killed(self):
    script = (
        'import sys\n'
        f'sys.path[:0] = {sys.path!r}\n'
        'from rl_tpu.isolation import pool\n'
        'made = pool.CallPool(1)\n'
        f'print(made.submit("{self.module}:pid", timeout_s=30).result(),'
        ' flush=True)\n'
        f'made.submit("{self.module}:hang", timeout_s=1000).result()\n'
    )
    parent = subprocess.Popen(
        [sys.executable, '-c', script], stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    self.assertTrue(is_running(pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    self.assertTrue(wait_until(lambda: not is_running(pid)))

  def test_nothing_is_left_open(self):
    def count() -> int:
      return len(os.listdir('/proc/self/fd'))

    before = count()
    for _ in range(3):
      made = pool.CallPool(2)
      with self.assertRaises(errors.WorkerTimeout):
        self.submit(made, 'hang', timeout_s=0.1).result()
      made.close()
    self.assertEqual(count(), before)

  def test_no_workers_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'workers = 0'):
      pool.CallPool(0)


if __name__ == '__main__':
  absltest.main()
