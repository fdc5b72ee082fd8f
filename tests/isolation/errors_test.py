"""What the class of an exception tells of its cause."""

import socket
import subprocess
import urllib.error

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.isolation import errors
from rl_tpu.types import termination as term


class _ConnectError(Exception):
  """As a library names its own."""


_ConnectError.__name__ = 'ConnectError'


class CauseTest(parameterized.TestCase):

  @parameterized.parameters(
      (MemoryError(), term.FaultCause.MEMORY),
      (ConnectionResetError(), term.FaultCause.NETWORK),
      (BrokenPipeError(), term.FaultCause.NETWORK),
      (socket.gaierror(), term.FaultCause.NETWORK),
      (urllib.error.URLError('x'), term.FaultCause.NETWORK),
      (_ConnectError(), term.FaultCause.NETWORK),
      (TimeoutError(), term.FaultCause.TIMEOUT),
      (subprocess.TimeoutExpired('x', 1), term.FaultCause.TIMEOUT),
      (ValueError(), None),
      (OSError(), None),
  )
  def test_by_class(self, error, cause):
    self.assertEqual(errors.cause_of(error), cause)


if __name__ == '__main__':
  absltest.main()
