"""Who steers the devices."""

import os
import sys
import types
from unittest import mock

from absl.testing import absltest
import jax

from rl_tpu.sharding import controller


class ControllerTest(absltest.TestCase):

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

  def test_several_processes_are_refused(self):
    with (
        mock.patch.object(jax, 'process_count', lambda: 4),
        self.assertRaisesRegex(ValueError, '4 processes: .*one host'),
    ):
      controller.start()


if __name__ == '__main__':
  absltest.main()
