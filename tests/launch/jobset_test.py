"""launch.jobset: the YAML it writes, checked by Kubernetes' own schemas."""

import json
import pathlib

import yaml
from absl.testing import absltest

from tests.launch import tools


class JobSetTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def written(self, *flags: str) -> dict:
    done = tools.python('-m', 'launch.jobset', *tools.FLAGS, *flags)
    self.assertEqual(done.returncode, 0, done.stderr)
    return yaml.safe_load(done.stdout)

  def validate(self, jobset: dict) -> tuple[int, str]:
    """What kubernetes-validate says of the one Job of a JobSet."""
    (replicated,) = jobset['spec']['replicatedJobs']
    job = {
        'apiVersion': 'batch/v1',
        'kind': 'Job',
        'metadata': {'name': replicated['name']},
        'spec': replicated['template']['spec'],
    }
    file = self.folder / 'job.json'
    file.write_text(json.dumps(job))
    done = tools.run(
        str(tools.VENV / 'kubernetes-validate'), '--strict', str(file)
    )
    return done.returncode, done.stdout + done.stderr

  def test_it_is_valid_with_everything_set(self):
    jobset = self.written(
        '--tpu-type=v6e-16', '--num-slices=2', '--spot', '--queue=multislice',
        '--env=A=1 "2"', '--libtpu-presets=vmem', '--set=mesh.fsdp=16',
    )
    code, said = self.validate(jobset)
    self.assertEqual(code, 0, said)
    container = jobset['spec']['replicatedJobs'][0]['template']['spec'][
        'template']['spec']['containers'][0]
    container['imgae'] = container.pop('image')
    code, said = self.validate(jobset)
    self.assertEqual(code, 1)
    self.assertIn('imgae', said)

  def test_every_host_of_every_slice_runs_the_program(self):
    jobset = self.written(
        '--tpu-type=v5p-128', '--num-slices=3', '--env=A=1 "2"',
        '--set=mesh.fsdp=64', '--libtpu-presets=vmem', '--workload=first',
    )
    self.assertEqual(
        jobset['metadata'],
        {
            'name': 'first',
            'annotations': {
                'alpha.jobset.sigs.k8s.io/exclusive-topology':
                    'cloud.google.com/gke-nodepool'
            },
        },
    )
    (replicated,) = jobset['spec']['replicatedJobs']
    self.assertEqual(replicated['replicas'], 3)
    job = replicated['template']['spec']
    self.assertEqual((job['parallelism'], job['completions']), (16, 16))
    pod = job['template']['spec']
    self.assertEqual(
        pod['nodeSelector'],
        {
            'cloud.google.com/gke-tpu-accelerator': 'tpu-v5p-slice',
            'cloud.google.com/gke-tpu-topology': '4x4x4',
        },
    )
    self.assertEqual([t['key'] for t in pod['tolerations']], ['google.com/tpu'])
    (container,) = pod['containers']
    self.assertEqual(container['image'], 'us-docker.pkg.dev/p/rl/rl:1')
    self.assertEqual(
        container['command'], [*tools.PROGRAM, '--set=mesh.fsdp=64']
    )
    self.assertEqual(
        tools.environment(container),
        {
            'JAX_PLATFORMS': 'tpu,cpu',
            'RL_TPU_PROCESSES': 'auto',
            'JAX_COMPILATION_CACHE_DIR':
                'gs://bucket/runs/first/compilation_cache',
            'LIBTPU_INIT_ARGS': '--xla_tpu_scoped_vmem_limit_kib=81920',
            'A': '1 "2"',
        },
    )

  def test_a_lost_host_restarts_and_a_faulty_run_does_not(self):
    jobset = self.written(
        '--tpu-type=v5p-8', '--max-restarts=7', '--restart-on-exit-codes=1,42',
        '--grace-seconds=90',
    )
    policy = jobset['spec']['failurePolicy']
    self.assertEqual(policy['maxRestarts'], 7)
    (rule,) = policy['rules']
    self.assertEqual(rule['action'], 'FailJobSet')
    self.assertEqual(rule['onJobFailureReasons'], ['PodFailurePolicy'])
    job = jobset['spec']['replicatedJobs'][0]['template']['spec']
    self.assertEqual(job['backoffLimit'], 0)
    pod = job['template']['spec']
    self.assertEqual(pod['terminationGracePeriodSeconds'], 90)
    (rule,) = job['podFailurePolicy']['rules']
    self.assertEqual(rule['action'], 'FailJob')
    self.assertEqual(rule['onExitCodes']['operator'], 'In')
    # 1 was asked to restart; 2 never does.
    self.assertEqual(rule['onExitCodes']['values'], [2])

  def test_spot_machines_and_queue_are_asked_for(self):
    jobset = self.written('--tpu-type=v6e-16', '--spot', '--queue=multislice')
    self.assertEqual(
        jobset['metadata']['labels'],
        {'kueue.x-k8s.io/queue-name': 'multislice'},
    )
    pod = jobset['spec']['replicatedJobs'][0]['template']['spec']['template']
    self.assertEqual(
        pod['spec']['nodeSelector']['cloud.google.com/gke-spot'], 'true'
    )
    self.assertIn(
        'cloud.google.com/gke-spot',
        [t['key'] for t in pod['spec']['tolerations']],
    )

  def test_a_file_is_written_and_the_next_command_printed(self):
    file = self.folder / 'my job.yaml'
    done = tools.python(
        '-m', 'launch.jobset', *tools.FLAGS, '--tpu-type=v5p-8',
        f'--output={file}',
    )
    self.assertEqual(done.stdout, f"kubectl apply -f '{file}'\n")
    self.assertEqual(yaml.safe_load(file.read_text())['kind'], 'JobSet')


if __name__ == '__main__':
  absltest.main()
