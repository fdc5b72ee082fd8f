"""The text of a module of a user: calls and environments that fail."""

import sys

SOURCE = '''
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
import time

from rl_tpu.environments import protocol
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers


def add(a, b):
  return a + b


def pid():
  return os.getpid()


def hang():
  time.sleep(10_000)


def spin():
  while True:
    pass


def hang_with_child(path):
  sleep = 'import time; time.sleep(1e4)'
  child = subprocess.Popen([sys.executable, '-c', sleep])
  with open(path, 'w') as file:
    file.write(str(child.pid))
  time.sleep(10_000)


def boom():
  raise KeyError('lost')


def exhausted():
  raise MemoryError('too much')


def leave():
  raise SystemExit(4)


def die():
  os._exit(3)


def talk():
  print('not an answer')
  return 'answer'


def unreadable():
  return lambda: 0


class Unreadable:

  def __reduce__(self):
    return int, ('no number',)


def unreadable_there():
  return Unreadable()


def say(data):
  """Writes to the worker's own socket, as a stray descriptor would."""
  while data:
    try:
      data = data[os.write(int(sys.argv[1]), data) :]
    except BlockingIOError:
      time.sleep(0.001)


def noise():
  say(b'x' * 64)


def frame(data):
  say(struct.pack('!Q', len(data)) + data)
  time.sleep(10_000)


class Evil:
  """What unpickling it does is told by a file."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (self.path, 'w')


def frame_pickle(path, protocol_number):
  frame(pickle.dumps(Evil(path), protocol_number))


def frame_codes(codes):
  frame(''.join(map(chr, codes)).encode('utf-8', 'surrogatepass'))


def answer_later(delay_s):
  data = b'{"is": "tuple", "of": ["value", 666]}'

  def late():
    time.sleep(delay_s)
    say(struct.pack('!Q', len(data)) + data)

  threading.Thread(target=late).start()
  return 1


def number(name):
  return float(name)


def frame_nested(times, mark):
  frame(mark.encode() * times)


def frame_zeros(count):
  frame(b'[' + b'0,' * count + b'0]')


def length_alone(length):
  say(struct.pack('!Q', length))
  time.sleep(10_000)


def flood():
  data = b'["started"]'
  while True:
    say((struct.pack('!Q', len(data)) + data) * 1000)


def long_text(length):
  return 'x' * length


def another_object():
  data = b'42'
  say(struct.pack('!Q', len(data)) + data)


def echo(value):
  return value


def half_a_pair():
  return chr(0xd83d)


def raise_half_a_pair():
  raise ValueError(chr(0xd83d))


def variables():
  return dict(os.environ)


def half_an_answer():
  say(struct.pack('!Q', 1000) + b'only this')
  time.sleep(10_000)


def greedy():
  return len(bytearray(1 << 33))


def unplugged(kind):
  raise {'pipe': BrokenPipeError, 'reset': ConnectionResetError}[kind]('gone')


def has_jax():
  return 'jax' in sys.modules


def slow_then(value):
  time.sleep(0.3)
  return value


class World:
  """Does what its task says: right, wrong, boom, hang or die."""

  def __init__(self, mark=''):
    self.mark = mark
    self.kind = None
    self.closed = False

  @property
  def spec(self):
    return protocol.EnvironmentSpec('world', '1', blocking=True)

  def reset(self, task, seed):
    random.seed(seed)
    self.kind = task.payload['kind']
    return protocol.Observation(prompt=(protocol.Message('user', 'go'),))

  def instruction(self):
    return (protocol.Message('system', self.mark),)

  def step(self, action):
    if self.kind == 'boom':
      raise RuntimeError('the tool broke')
    if self.kind == 'hang':
      time.sleep(10_000)
    if self.kind == 'die':
      os._exit(3)
    end = protocol.End(term.Termination.POLICY_STOP)
    return protocol.Step(rewards={'draw': random.random()}, end=end)

  def evidence(self):
    return {'kind': self.kind}

  def where(self):
    return os.getpid(), id(self)

  def close(self):
    if self.kind == 'stuck':
      time.sleep(10_000)
    if self.kind == 'torn':
      raise OSError('it is gone already')


class Verifier:
  """Scores a kind, or does something else."""

  verifier_id = 'kinds'
  version = '3'

  def __init__(self, right='right'):
    self.right = right

  def score(self, evidence):
    kind = evidence['kind']
    if kind == 'hang':
      time.sleep(10_000)
    if kind == 'boom':
      raise ZeroDivisionError('no score')
    if kind == 'die':
      os._exit(3)
    if kind == 'nan':
      return verifiers.Score(float('nan'), False)
    solved = kind == self.right
    return verifiers.Score(float(solved), solved, {'length': 1.0})
'''


def install(test) -> str:
  """Makes the module importable for a test and its workers.

  Args:
    test: an absl test case.

  Returns:
    The module's name.
  """
  folder = test.create_tempdir().full_path
  with open(f'{folder}/user_worlds.py', 'w', encoding='utf-8') as file:
    file.write(SOURCE)
  sys.path.insert(0, folder)
  test.addCleanup(sys.path.remove, folder)
  test.addCleanup(sys.modules.pop, 'user_worlds', None)
  return 'user_worlds'
