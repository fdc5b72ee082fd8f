"""What is sent between a worker and its parent, and what is refused."""

import json
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.environments import protocol
from rl_tpu.isolation import wire
from rl_tpu.records import records
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers

_MESSAGE = protocol.Message('user', 'gö "[{')


def tagged(name, of) -> bytes:
  return json.dumps({'is': name, 'of': of}).encode()


class WireTest(parameterized.TestCase):

  @parameterized.parameters(
      (None,), (True,), (0,), (-(2**63),), (10**399,), (0.1,), ('',),
      ('é😀\x00"\\',), ([],), ((),), ([1, (2, [])],), ({},),
      ({'a': {3: (None,)}},), ({'is': 'tuple', 'of': [1]},),
      (protocol.Observation((_MESSAGE,), ()),),
      (protocol.Step(end=protocol.End(term.Termination.POLICY_STOP)),),
      (protocol.Step(
          protocol.Observation(prompt=(_MESSAGE,)), {'a': 1.5},
          counters={'n': 2},
      ),),
      (protocol.End(term.Termination.RUNTIME_ABORT, list(term.AbortCause)[0]),),
      (protocol.Action('x', 'length', (
          protocol.ToolCall('f', {'a': [1, None]}, 2, 5),
      )),),
      (verifiers.Score(0.5, True, {'length': 3.0}),),
      (records.Task('t', 's', 'f', 3, {'a': [1]}, ({'name': 'f'},)),),
  )
  def test_what_is_sent_comes_back_equal_and_of_its_type(self, value):
    back = wire.unpacked(wire.packed(value))
    self.assertEqual(back, value)
    self.assertIs(type(back), type(value))

  def test_numbers_of_numpy_are_numbers(self):
    back = wire.unpacked(wire.packed([np.float32(0.5), np.int64(3)]))
    self.assertEqual(back, [0.5, 3])

  @parameterized.parameters(
      (object(),), ({1, 2},), (b'x',), (int,), (lambda: 0,), (1j,),
      (np.zeros(2),), ([{'a': object()}],),
  )
  def test_what_is_no_data_is_not_sent(self, value):
    with self.assertRaisesRegex(TypeError, 'cannot be sent'):
      wire.packed(value)

  def test_a_record_of_a_known_name_and_another_class_is_not_sent(self):
    class Observation(protocol.Observation):
      pass

    with self.assertRaisesRegex(TypeError, 'cannot be sent'):
      wire.packed(Observation())

  def test_a_value_that_holds_itself_is_not_sent(self):
    value = []
    value.append(value)
    with self.assertRaisesRegex(ValueError, 'nested more than'):
      wire.packed(value)

  @parameterized.parameters(
      (b'', 'Expecting'),
      (b'\x80\x04K*.', 'utf-8|decode'),
      (b'{"a": 1}', 'of no kind'),
      (b'{"is": [], "of": 1}', 'of no kind'),
      (tagged('os.system', 'true'), 'of no kind'),
      (tagged('Observation', []), 'without fields'),
      (tagged('Observation', {'x': 1}), 'has a x'),
      (tagged('Message', {'role': 'user'}), 'has no content'),
      (tagged('Termination', 'nothing'), 'not a valid'),
      (tagged('Termination', {}), 'is no text'),
      (tagged('dict', [[1]]), 'no pair'),
      (tagged('dict', [[[], 1]]), 'a key that is none'),
      (tagged('dict', {'a': 1}), 'of no kind'),
      (b'[' * 10**6, 'values'),
      (b'[' * 10**5, 'nested more than'),
      (b'[{"a":' * 10**5, 'nested more than'),
      (b'[' * 1000 + b']' * 1000, 'nested more than'),
      (b'[' + b'0,' * 10**6 + b'0]', 'more than .* values'),
      (b'[' + b'"",' * 10**6 + b'0]', 'more than .* values'),
      (b'"' + b'\\"' * 10**6 + b',[' * 10**6, 'Unterminated'),
      (b'9' * 10**5, 'has 100000 digits'),
      (b'"\\ud83d"', 'surrogates'),
      (b'"\xed\xa0\xbd"', "can't decode"),
  )
  def test_a_hostile_text_is_refused_at_once(self, data, message):
    start = time.monotonic()
    with self.assertRaisesRegex(ValueError, message):
      wire.unpacked(data)
    self.assertLess(time.monotonic() - start, 2.0)

  def test_brackets_in_texts_are_text(self):
    value = ['[' * 1000 + '\\"' + '{,' * 300_000]
    self.assertEqual(wire.unpacked(wire.packed(value)), value)


if __name__ == '__main__':
  absltest.main()
