"""Presets of libtpu flags; the installed libtpu parses each of them."""

import subprocess

from absl.testing import absltest
from absl.testing import parameterized

from launch import libtpu
from tests.launch import tools

_LOAD = (
    'from jax.experimental import topologies;'
    "print(len(topologies.get_topology_desc('v5e:2x2', 'tpu').devices))"
)


def load(flags: str) -> subprocess.CompletedProcess:
  """Loads libtpu, which reads its flags and ends at an unknown one."""
  env = tools.COMPILER | {'LIBTPU_INIT_ARGS': flags}
  return tools.python('-c', _LOAD, env=env)


class LibtpuTest(parameterized.TestCase):

  def test_flags_of_presets_are_joined(self):
    self.assertEqual(
        libtpu.flags(['slices', 'vmem'], 'v5p'),
        '--xla_tpu_enable_data_parallel_all_reduce_opt=true'
        ' --xla_tpu_data_parallel_opt_different_sized_ops=true'
        ' --xla_tpu_scoped_vmem_limit_kib=81920',
    )
    self.assertEqual(libtpu.flags([], 'v5p'), '')

  @parameterized.parameters(
      ('ovrlap', 'v5p', 'overlap, slices, vmem'), ('overlap', 'v4', 'none')
  )
  def test_a_preset_that_there_is_not(self, name, generation, known):
    with self.assertRaisesRegex(ValueError, f'{name}.*{generation}.*{known}'):
      libtpu.flags([name], generation)

  @parameterized.parameters('v5e', 'v5p', 'v6e')
  def test_the_installed_libtpu_knows_every_flag(self, generation):
    names = [n for n, chips in libtpu.PRESETS.items() if generation in chips]
    done = load(libtpu.flags(names, generation))
    self.assertEqual((done.returncode, done.stdout), (0, '4\n'), done.stderr)

  def test_the_check_finds_an_unknown_flag(self):
    done = load('--xla_tpu_no_such_flag=true')
    self.assertEqual(done.returncode, 1)
    self.assertIn("flag 'xla_tpu_no_such_flag'", done.stderr)


if __name__ == '__main__':
  absltest.main()
