"""What the processes of a run tell each other."""

import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.sharding import hosts
from tests import processes


class _Unpicklable(Exception):

  def __init__(self, first, second):
    super().__init__(f'{first} and {second}')


class HostsTest(parameterized.TestCase):

  def test_exchange_is_in_the_order_of_the_processes(self):
    found = processes.together(3, lambda here: here.exchange(here.index * 10))
    self.assertEqual(found, [[0, 10, 20]] * 3)

  def test_one_process_exchanges_the_very_object(self):
    item = object()  # Pickle would make another.
    self.assertIs(hosts.ALONE.exchange(item)[0], item)
    self.assertIs(hosts.ALONE.of_lead(lambda: item), item)

  def test_of_lead_asks_the_lead_alone(self):
    asked = []

    def run(here):
      return here.of_lead(lambda: asked.append(here.index) or 'made')

    self.assertEqual(processes.together(2, run), ['made', 'made'])
    self.assertEqual(asked, [0])

  @parameterized.named_parameters(
      ('plain', ValueError('no such file'), ValueError),
      ('not_picklable', _Unpicklable(1, 2), RuntimeError),
  )
  def test_an_error_of_the_lead_is_raised_everywhere(self, error, kind):
    def run(here):
      def make():
        raise error

      with self.assertRaises(kind) as caught:
        here.of_lead(make)
      return str(caught.exception)

    first, second = processes.together(2, run)
    self.assertEqual(first, second)
    self.assertIn(str(error), first)

  def test_check_equal_names_what_differs_and_where(self):
    def run(here):
      here.check_equal('the queue', b'same')
      with self.assertRaisesRegex(
          RuntimeError, 'the queue differs .*process 2 against process 0'
      ):
        here.check_equal('the queue', b'x' if here.index == 2 else b'y')
      return 'done'

    self.assertEqual(processes.together(3, run), ['done'] * 3)

  @parameterized.parameters(0, 1, 4088, 4089, 4090, 4096, 9000, 70000)
  def test_frames_hold_data_of_any_length(self, length):
    # Process 1 says something short while process 0 is long.
    data = [np.random.default_rng(7).bytes(length), b'short']
    barrier, told = threading.Barrier(2, timeout=30), [None, None]
    place = threading.local()
    sizes = set()

    def gather_array(part, size):
      padded = np.zeros(size, np.uint8)
      padded[: len(part)] = np.frombuffer(part, np.uint8)
      told[place.index] = padded
      sizes.add(size)
      barrier.wait()
      rows = np.stack(told)
      barrier.wait()
      return rows

    found = [None, None]

    def work(index):
      place.index = index
      found[index] = hosts._gather(data[index])

    with mock.patch.object(hosts, '_gather_array', gather_array):
      threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
    self.assertEqual(found, [data, data])
    # Few programs: the frame, and powers of two.
    self.assertLessEqual(len(sizes), 2)
    self.assertTrue(all(size & (size - 1) == 0 for size in sizes), sizes)


if __name__ == '__main__':
  absltest.main()
