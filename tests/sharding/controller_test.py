"""Who steers the devices."""

import os
import sys
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax

from rl_tpu.sharding import controller


class ControllerTest(parameterized.TestCase):

  def test_pathways_is_called_where_the_environment_asks_for_it(self):
    calls = []
    stub = types.ModuleType('pathwaysutils')
    stub.initialize = lambda: calls.append(1)
    with mock.patch.dict(sys.modules, pathwaysutils=stub):
      controller.start()
      self.assertEqual(calls, [])
      with mock.patch.dict(os.environ, JAX_PLATFORMS='proxy,cpu'):
        controller.start()
    self.assertEqual(calls, [1])

  def test_pathways_without_its_package_names_the_cure(self):
    with (
        mock.patch.dict(os.environ, JAX_PLATFORMS='proxy'),
        mock.patch.dict(sys.modules, pathwaysutils=None),
        self.assertRaisesRegex(ValueError, 'bash launch/setup.sh pod'),
    ):
      controller.start()

  def test_a_platform_that_the_machine_lacks_is_a_mistake(self):
    lacks = RuntimeError("Unable to initialize backend 'tpu'")
    with (
        mock.patch.object(jax, 'process_count', side_effect=lacks),
        mock.patch.dict(os.environ, JAX_PLATFORMS='tpu'),
    ):
      with self.assertRaisesRegex(ValueError, 'JAX_PLATFORMS=tpu: Unable'):
        controller.start()
    # Of several processes another one may be the reason.
    with (
        mock.patch.object(jax, 'process_count', side_effect=lacks),
        mock.patch.object(jax.distributed, 'is_initialized', lambda: True),
        mock.patch.dict(os.environ, RL_TPU_PROCESSES='auto'),
        self.assertRaises(RuntimeError),
    ):
      controller.start()

  def test_processes_that_do_not_join_are_told_to(self):
    with (
        mock.patch.object(jax, 'process_count', lambda: 4),
        self.assertRaisesRegex(
            ValueError, '4 processes .*RL_TPU_PROCESSES=auto'
        ),
    ):
      controller.start()

  @parameterized.named_parameters(
      ('tpu', {'RL_TPU_PROCESSES': 'auto'}, {}),
      (
          'named',
          {
              'RL_TPU_PROCESSES': '4',
              'RL_TPU_PROCESS': '3',
              'RL_TPU_COORDINATOR': 'host-0:8476',
          },
          {
              'coordinator_address': 'host-0:8476',
              'num_processes': 4,
              'process_id': 3,
          },
      ),
  )
  def test_joins_the_others(self, environment, place):
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(jax.distributed, 'initialize') as join,
    ):
      os.environ.pop('NPROC', None)
      controller.start()
      # A core or two is not enough for collectives that wait for each other.
      self.assertGreaterEqual(int(os.environ['NPROC']), 16)
    called = join.call_args.kwargs
    # All others are aborted within a minute of a loss.
    self.assertLess(called.pop('heartbeat_timeout_seconds'), 60)
    self.assertEqual(called, place)

  @parameterized.parameters(
      (
          dict(RL_TPU_PROCESSES='two'),
          'RL_TPU_PROCESSES=two: .*a number, or auto',
      ),
      (dict(RL_TPU_PROCESSES='0'), 'RL_TPU_PROCESSES=0: .*a number, or auto'),
      (dict(RL_TPU_PROCESSES='2'), 'RL_TPU_PROCESS=: .*no other process has'),
      (
          dict(RL_TPU_PROCESSES='2', RL_TPU_PROCESS='2'),
          'RL_TPU_PROCESS=2: of RL_TPU_PROCESSES=2 the last one is 1',
      ),
      (
          dict(RL_TPU_PROCESSES='2', RL_TPU_PROCESS='1'),
          'RL_TPU_COORDINATOR=: .*HOST:PORT',
      ),
      (
          dict(
              RL_TPU_PROCESSES='2', RL_TPU_PROCESS='1',
              RL_TPU_COORDINATOR='host',
          ),
          'RL_TPU_COORDINATOR=host: .*HOST:PORT',
      ),
  )
  def test_refuses(self, environment, message):
    with (
        mock.patch.dict(os.environ, environment),
        self.assertRaisesRegex(ValueError, message),
    ):
      controller.start()


if __name__ == '__main__':
  absltest.main()
