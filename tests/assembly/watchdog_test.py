"""O6: a process whose devices do not answer says so and ends."""

import contextlib
import io
import pathlib
import queue
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest

from rl_tpu.assembly import watchdog as watchdog_lib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

HANGS = """
import time
from rl_tpu.assembly import watchdog
with watchdog.Watchdog(0.2, lambda what: f'{what} hangs') as dog:
  with dog.watch('the update'):
    time.sleep(1000)
"""


def lost(what):
  raise OSError(f'{what}: no space left')


class WatchdogTest(absltest.TestCase):

  def ended(self, report) -> tuple[int, str]:
    """Exit code and line of a process that hangs."""
    codes, err = queue.Queue(), io.StringIO()
    with contextlib.redirect_stderr(err):
      with watchdog_lib.Watchdog(0.05, report, end=codes.put) as dog:
        with dog.watch('the update'):
          code = codes.get(timeout=60)
    self.assertTrue(codes.empty())
    return code, err.getvalue()

  def test_O6_a_call_that_hangs_is_named(self):
    found = self.ended(lambda what: f'{what} hangs')
    self.assertEqual(found, (42, 'rl_tpu: the update hangs\n'))

  def test_O6_it_ends_where_nothing_can_be_written(self):
    with mock.patch.object(threading, 'excepthook', lambda _: None):
      self.assertEqual(self.ended(lost), (42, ''))

  def test_O6_it_ends_where_the_report_hangs_as_well(self):
    with mock.patch.object(watchdog_lib, '_LAST_WORDS_S', 0.05):
      held = threading.Event()
      codes = queue.Queue()
      with watchdog_lib.Watchdog(
          0.05, lambda what: str(held.wait()), end=codes.put
      ) as dog:
        with dog.watch('the update'):
          self.assertEqual(codes.get(timeout=60), 42)
        with contextlib.redirect_stderr(io.StringIO()):
          held.set()
          codes.get(timeout=60)

  def test_O6_calls_that_come_back_and_what_is_not_watched_are_no_hang(self):
    codes = queue.Queue()
    with watchdog_lib.Watchdog(60.0, str, end=codes.put) as dog:
      for _ in range(3):
        with dog.watch('the update'):
          pass
      with self.assertRaises(KeyError), dog.watch('the update'):
        raise KeyError('lost')
    with watchdog_lib.Watchdog(0.01, str, end=codes.put) as dog:
      with dog.watch('the update'):
        pass
      time.sleep(0.1)  # Between two calls.
    self.assertTrue(codes.empty())

  def test_K38_its_thread_ends_with_it_and_off_there_is_none(self):
    before = threading.active_count()
    with watchdog_lib.Watchdog(60.0, str):
      self.assertEqual(threading.active_count(), before + 1)
    with watchdog_lib.Watchdog(None, str) as dog:
      with dog.watch('the update'):
        self.assertEqual(threading.active_count(), before)

  def test_O6_the_process_itself_ends(self):
    done = subprocess.run(
        [sys.executable, '-c', HANGS], cwd=ROOT, capture_output=True, text=True,
        timeout=120, check=False,
    )
    self.assertEqual(done.returncode, 42)
    self.assertEqual(done.stderr, 'rl_tpu: the update hangs\n')


if __name__ == '__main__':
  absltest.main()
