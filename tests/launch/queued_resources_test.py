"""launch.queued_resources: its gcloud lines, checked by gcloud where it is."""

import json
import os
import pathlib
import shlex
import shutil

from absl.testing import absltest
from absl.testing import parameterized

from tests.launch import tools

_MODULE = ('-m', 'launch.queued_resources')
_ZONE = '--zone=us-east5-a'
_STEPS = ['create', 'status', 'run', 'logs', 'stop', 'delete']
# Where gcloud is not installed: it notes its words and agrees.
_STUB = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> {log}
"""


class QueuedResourcesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.log = self.folder / 'log'
    self.stubbed = {'PATH': f'{self.folder}:{os.environ["PATH"]}'}

  def stub(self) -> None:
    file = self.folder / 'gcloud'
    file.write_text(_STUB.format(log=self.log))
    file.chmod(0o755)

  def steps(self, *flags: str) -> dict[str, str]:
    """Step -> command line, as printed."""
    done = tools.python(*_MODULE, *tools.FLAGS, _ZONE, *flags)
    self.assertEqual(done.returncode, 0, done.stderr)
    lines = done.stdout.splitlines()[2:]
    return {
        name.removeprefix('# '): line
        for name, line in zip(lines[::2], lines[1::2], strict=True)
    }

  def refused(self, lines: list[str]) -> list[str]:
    """Those of the lines that gcloud itself does not accept."""
    file = self.folder / 'lines.json'
    file.write_text(json.dumps([{'command_string': line} for line in lines]))
    done = tools.run(
        'gcloud', 'meta', 'lint-gcloud-commands', f'--commands-file={file}',
        env={'CLOUDSDK_CONFIG': str(self.folder)},
    )
    found = json.loads(done.stdout)
    self.assertLen(found, len(lines))
    return [line['command_string'] for line in found if not line['success']]

  def test_gcloud_accepts_every_step_and_no_misspelt_one(self):
    if not shutil.which('gcloud'):
      return
    one = self.steps('--tpu-type=v5p-32')
    more = self.steps(
        '--tpu-type=v6e-256', '--num-slices=2', '--spot', '--project=p',
        '--env=A=1 2',
    )
    misspelt = one['create'].replace('--node-id', '--node-idd')
    self.assertEqual(
        self.refused([*one.values(), *more.values(), misspelt]), [misspelt]
    )

  @parameterized.parameters(
      ('v5p-32', 1, 'v2-alpha-tpuv5', ['--node-id=first']),
      ('v6e-256', 2, 'v2-alpha-tpuv6e',
       ['--node-count=2', '--node-prefix=first']),
      ('v5litepod-16', 1, 'v2-alpha-tpuv5-lite', ['--node-id=first']),
      ('v4-32', 1, 'tpu-ubuntu2204-base', ['--node-id=first']),
  )
  def test_the_request(self, tpu_type, slices, runtime, nodes):
    steps = self.steps(
        f'--tpu-type={tpu_type}', f'--num-slices={slices}', '--spot',
        '--project=p', '--workload=first', '--valid-until=30m',
    )
    self.assertEqual(list(steps), _STEPS)
    self.assertEqual(
        shlex.split(steps['create']),
        [
            'gcloud', 'compute', 'tpus', 'queued-resources', 'create', 'first',
            _ZONE, '--project=p', *nodes, f'--accelerator-type={tpu_type}',
            f'--runtime-version={runtime}', '--spot',
            '--valid-until-duration=30m',
        ],
    )

  def test_every_worker_of_every_slice_runs_the_container(self):
    line = self.steps(
        '--tpu-type=v5p-32', '--num-slices=2', '--workload=first',
        '--env=A=1 2', '--set=mesh.fsdp=16',
    )['run']
    words = shlex.split(line)
    self.assertContainsSubset(['ssh', '--node=all', '--worker=all'], words)
    (command,) = [w for w in words if w.startswith('--command=')]
    remove, start = command.removeprefix('--command=').split('; ')
    self.assertEqual(remove, 'sudo docker rm --force first 2>/dev/null')
    login, run = start.split(' && ')
    self.assertEqual(
        login, 'sudo gcloud auth configure-docker us-docker.pkg.dev --quiet'
    )
    self.assertEqual(
        shlex.split(run),
        [
            'sudo', 'docker', 'run', '--detach', '--name=first', '--privileged',
            '--network=host', '--shm-size=16g', '--env=JAX_PLATFORMS=tpu,cpu',
            '--env=RL_TPU_PROCESSES=auto',
            '--env=JAX_COMPILATION_CACHE_DIR='
            'gs://bucket/runs/first/compilation_cache',
            '--env=A=1 2', 'us-docker.pkg.dev/p/rl/rl:1', *tools.PROGRAM,
            '--set=mesh.fsdp=16',
        ],
    )

  @parameterized.parameters('create', 'run')
  def test_a_step_runs_the_line_that_was_printed(self, step):
    self.stub()
    printed = self.steps('--tpu-type=v5p-32')[step]
    done = tools.python(
        *_MODULE, *tools.FLAGS, _ZONE, '--tpu-type=v5p-32', f'--step={step}',
        env=self.stubbed,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(done.stdout, printed + '\n')
    self.assertEqual(
        self.log.read_text().splitlines(), shlex.split(printed)[1:]
    )

  def test_printing_runs_nothing(self):
    self.stub()
    for flags in ((), ('--step=create', '--dry-run')):
      done = tools.python(
          *_MODULE, *tools.FLAGS, _ZONE, '--tpu-type=v5p-32', *flags,
          env=self.stubbed,
      )
      self.assertEqual(done.returncode, 0, done.stderr)
      self.assertIn('queued-resources create', done.stdout)
      self.assertFalse(self.log.exists())

  def test_another_registry_needs_no_login_by_gcloud(self):
    line = self.steps('--tpu-type=v5p-8', '--docker-image=docker.io/me/rl')
    self.assertIn('sudo docker run ', line['run'])
    self.assertNotIn('configure-docker', line['run'])

  def test_tpu7x_is_refused_with_the_reason(self):
    done = tools.python(*_MODULE, *tools.FLAGS, _ZONE, '--tpu-type=tpu7x-8')
    self.assertEqual(done.returncode, 2)
    self.assertRegex(done.stderr, r'^launch.queued_resources: --tpu-type=tpu7x')
    self.assertIn('Cloud TPU API', done.stderr)


if __name__ == '__main__':
  absltest.main()
