"""launch.pathways: the command it prints, run by xpk itself."""

import pathlib
import re
import shlex

import yaml
from absl.testing import absltest

from launch import pathways
from tests.launch import tools


class PathwaysTest(absltest.TestCase):

  def manifest(self, *flags: str) -> dict:
    """The JobSet that xpk makes of the command that is printed."""
    done = tools.python(
        '-m', 'launch.pathways', *tools.FLAGS, '--cluster=pod', '--project=p',
        '--zone=us-east5-a', '--dry-run', *flags,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    command = shlex.split(done.stdout.splitlines()[-1])
    folder = pathlib.Path(self.create_tempdir().full_path)
    file = folder / 'manifest.yaml'
    done = tools.xpk(
        *command[1:], '--dry-run', '--skip-validation',
        f'--output-manifest-file={file}', home=str(folder),
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    return yaml.safe_load(file.read_text())

  def test_one_program_steers_the_workers_of_every_slice(self):
    jobset = self.manifest(
        '--tpu-type=v5p-128', '--num-slices=2', '--libtpu-presets=slices',
        '--set=mesh.fsdp=64', '--env=A=1',
    )
    head, worker = jobset['spec']['replicatedJobs']
    self.assertEqual(worker['replicas'], 2)
    self.assertEqual(worker['template']['spec']['parallelism'], 16)
    pod = worker['template']['spec']['template']['spec']
    self.assertEqual(
        pod['nodeSelector']['cloud.google.com/gke-tpu-topology'], '4x4x4'
    )

    self.assertEqual(head['replicas'], 1)
    self.assertEqual(head['template']['spec']['parallelism'], 1)
    pod = head['template']['spec']['template']['spec']
    (program,) = pod['containers']
    self.assertIn(
        f'(exec {shlex.join(tools.PROGRAM)} --set=mesh.fsdp=64)',
        program['command'][2],
    )
    # By the first two the program knows that it runs under Pathways.
    variables = tools.environment(program)
    self.assertEqual(variables['JAX_PLATFORMS'], 'proxy')
    self.assertStartsWith(variables['JAX_BACKEND_TARGET'], 'grpc://')
    self.assertEqual(variables['ENABLE_PATHWAYS_PERSISTENCE'], '1')
    self.assertEqual(variables['A'], '1')
    self.assertNotIn('JAX_COMPILATION_CACHE_DIR', variables)
    self.assertNotIn('LIBTPU_INIT_ARGS', variables)

    servers = {c['name']: c for c in pod['initContainers']}
    proxy = servers['pathways-proxy']
    self.assertContainsSubset(
        [
            '--gcs_scratch_location=gs://bucket/runs/first/pathways',
            '--xla_tpu_enable_data_parallel_all_reduce_opt=true',
            '--xla_tpu_data_parallel_opt_different_sized_ops=true',
        ],
        proxy['args'],
    )
    self.assertEndsWith(proxy['image'], f'proxy_server:{pathways.VERSION}')
    self.assertEndsWith(
        servers['pathways-rm']['image'], f'/server:{pathways.VERSION}'
    )

  def test_the_servers_are_of_the_pinned_jax(self):
    pins = (tools.ROOT / 'constraints.txt').read_text()
    version = re.search(r'^jax==(.*)$', pins, re.MULTILINE)[1]
    self.assertEndsWith(pathways.VERSION, f'-jax_{version}')


if __name__ == '__main__':
  absltest.main()
