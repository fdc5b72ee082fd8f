"""A worker that lies costs its own call, and runs nothing here."""

import pathlib
import time

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.isolation import errors
from rl_tpu.isolation import pool
from tests.isolation import worlds


class HostileTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.module = worlds.install(self)
    self.made = pool.CallPool(1)
    self.addCleanup(self.made.close)

  def submit(self, name, *args, timeout_s=20.0):
    target = f'{self.module}:{name}'
    return self.made.submit(target, args, timeout_s=timeout_s)

  def check_costs_the_process_alone(self, message, name, *args):
    start = time.monotonic()
    with self.assertRaisesRegex(errors.WorkerCrashed, message):
      self.submit(name, *args).result()
    self.assertLess(time.monotonic() - start, 15.0)
    self.assertEqual(self.submit('add', 1, 1).result(), 2)

  @parameterized.parameters(0, 2, 5)
  def test_a_pickle_runs_nothing(self, protocol_number):
    path = pathlib.Path(self.create_tempdir().full_path) / 'owned'
    self.check_costs_the_process_alone(
        'its answer is none', 'frame_pickle', str(path), protocol_number
    )
    self.assertFalse(path.exists())

  @parameterized.parameters(
      ('{"is": "os:system", "of": "true"}', 'of no kind'),
      ('["value"]', 'no answer'),
      ('{"is": "tuple", "of": ["value"]}', 'no answer'),
      ('{"is": "tuple", "of": ["value", 1, 2]}', 'no answer'),
      ('{"is": "tuple", "of": ["ready"]}', 'no answer'),
      ('{"is": "tuple", "of": ["started"]}', 'no answer'),
      ('{"is": "tuple", "of": ["shutdown", 1]}', 'no answer'),
      ('{"is": "tuple", "of": [["value"], 1]}', 'no answer'),
      ('{"is": "tuple", "of": ["error", 1, 2, 3, null]}', 'no answer'),
      ('{"is": "tuple", "of": ["error", "a", "b", "c", "d"]}', 'no answer'),
      ('{"is": "tuple", "of": ["value", "\\ud83d"]}', 'surrogates'),
      ('{"is": "tuple", "of": ["value", "\ud83d"]}', 'UnicodeDecodeError'),
      ('9' * 100_000, 'has 100000 digits'),
      ('', 'Expecting'),
  )
  def test_what_is_no_message(self, text, message):
    # Written through a worker's own list: the call carries no half pair.
    codes = [ord(c) for c in text]
    self.check_costs_the_process_alone(message, 'frame_codes', codes)

  @parameterized.parameters('[', '{"a":', '[[{')
  def test_a_million_brackets(self, mark):
    self.check_costs_the_process_alone(
        'nested more than|values', 'frame_nested', 10**6, mark
    )

  def test_too_many_values(self):
    self.check_costs_the_process_alone('values', 'frame_zeros', 10**6)

  @parameterized.parameters(2**63, 2**64 - 1, 10**9)
  def test_a_huge_length(self, length):
    self.check_costs_the_process_alone('bytes', 'length_alone', length)

  def test_a_flood(self):
    self.check_costs_the_process_alone('no answer', 'flood')

  def test_an_answer_nobody_asked_for(self):
    self.assertEqual(self.submit('answer_later', 0.2).result(), 1)
    # The next call is not answered by what was sent before it.
    time.sleep(0.5)
    self.assertEqual(self.submit('add', 2, 3).result(), 5)

  def test_an_answer_of_too_many_bytes_is_told_by_an_honest_worker(self):
    with self.assertRaisesRegex(errors.CallFailed, 'bytes'):
      self.submit('long_text', 1 << 27).result()
    self.assertEqual(self.submit('add', 1, 1).result(), 2)

  @parameterized.parameters('half_a_pair', 'raise_half_a_pair')
  def test_half_a_surrogate_pair_fails_its_call(self, name):
    with self.assertRaises(errors.CallFailed):
      self.submit(name).result()
    self.assertEqual(self.submit('add', 1, 1).result(), 2)

  def test_numbers_that_are_none_are_left_to_the_checks(self):
    for name in ('nan', 'inf'):
      value = self.submit('number', name).result()
      self.assertEqual(repr(value), name)


if __name__ == '__main__':
  absltest.main()
