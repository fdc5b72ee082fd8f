"""launch.xpk: the command it prints, run by xpk itself without a cluster."""

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import yaml
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.cli import arguments
from rl_tpu.cli import verbs
from tests.launch import tools

_CLUSTER = ('--cluster=pod', '--project=p', '--zone=us-east5-a')
# Stands for the program: it is started, is told to stop, and says so.
_STOPPED_RUN = f"""#!{sys.executable}
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
pathlib.Path('started').write_text(' '.join(sys.argv[1:]))
time.sleep(60)
"""


class XpkTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def command(self, *flags: str) -> list[str]:
    """The words that a dry run prints as its last line."""
    done = tools.python(
        '-m', 'launch.xpk', *tools.FLAGS, *_CLUSTER, '--dry-run', *flags
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return shlex.split(done.stdout.splitlines()[-1])

  def manifest(self, command: list[str]) -> dict:
    """The JobSet that xpk makes of a command."""
    self.assertEqual(command[0], 'xpk')
    file = self.folder / 'manifest.yaml'
    done = tools.xpk(
        *command[1:], '--dry-run', '--skip-validation',
        f'--output-manifest-file={file}', home=str(self.folder),
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    return yaml.safe_load(file.read_text())

  def test_every_host_of_every_slice_runs_the_program(self):
    jobset = self.manifest(self.command(
        '--tpu-type=v5p-128', '--num-slices=2', '--set=mesh.fsdp=64',
        "--set=name=it's mine", '--env=A=1 2', '--workload=first',
        '--libtpu-presets=slices',
    ))
    self.assertEqual(jobset['metadata']['name'], 'first')
    (replicated,) = jobset['spec']['replicatedJobs']
    self.assertEqual(replicated['replicas'], 2)
    job = replicated['template']['spec']
    # v5p-128 has 64 chips, on 16 hosts of 4.
    self.assertEqual((job['parallelism'], job['completions']), (16, 16))
    pod = job['template']['spec']
    self.assertEqual(
        pod['nodeSelector'],
        {
            'cloud.google.com/gke-tpu-accelerator': 'tpu-v5p-slice',
            'cloud.google.com/gke-tpu-topology': '4x4x4',
        },
    )
    (container,) = pod['containers']
    self.assertEqual(container['image'], 'us-docker.pkg.dev/p/rl/rl:1')
    self.assertEqual(container['resources']['limits']['google.com/tpu'], 4)
    self.assertEqual(
        tools.environment(container),
        {
            'JAX_PLATFORMS': 'tpu,cpu',
            'RL_TPU_PROCESSES': 'auto',
            'JAX_COMPILATION_CACHE_DIR':
                'gs://bucket/runs/first/compilation_cache',
            'LIBTPU_INIT_ARGS':
                '--xla_tpu_enable_data_parallel_all_reduce_opt=true'
                ' --xla_tpu_data_parallel_opt_different_sized_ops=true',
            'A': '1 2',
        },
    )
    (line,) = [
        line.strip() for line in container['command'][2].splitlines()
        if 'rl_tpu' in line
    ]
    self.assertStartsWith(line, '(exec ')
    words = shlex.split(line[1 : line.index(')')])
    self.assertEqual(
        words,
        ['exec', *tools.PROGRAM, '--set=mesh.fsdp=64', "--set=name=it's mine"],
    )

  def test_a_stopped_run_restarts_and_a_faulty_one_does_not(self):
    jobset = self.manifest(self.command(
        '--tpu-type=v5p-8', '--max-restarts=7', '--restart-on-exit-codes=3',
        '--grace-seconds=90',
    ))
    self.assertEqual(jobset['spec']['failurePolicy']['maxRestarts'], 7)
    job = jobset['spec']['replicatedJobs'][0]['template']['spec']
    self.assertEqual(job['backoffLimit'], 0)
    pod = job['template']['spec']
    self.assertEqual(pod['terminationGracePeriodSeconds'], 90)
    (rule,) = job['podFailurePolicy']['rules']
    self.assertEqual(rule['action'], 'FailJob')
    self.assertEqual(rule['onExitCodes']['operator'], 'NotIn')
    restarting = rule['onExitCodes']['values']
    for code in (3, 42, 134, 137, 128 + signal.SIGTERM):
      self.assertIn(code, restarting)
    for code in (1, 2):
      self.assertNotIn(code, restarting)

  def test_the_signal_that_ends_a_pod_reaches_the_program(self):
    jobset = self.manifest(self.command('--tpu-type=v5p-8'))
    pod = jobset['spec']['replicatedJobs'][0]['template']['spec']['template']
    command = pod['spec']['containers'][0]['command']
    stub = self.folder / 'python'
    stub.write_text(_STOPPED_RUN)
    stub.chmod(0o755)
    started = self.folder / 'started'
    running = subprocess.Popen(
        command,
        cwd=self.folder,
        env={'PATH': f'{self.folder}:{os.environ["PATH"]}'},
        stdout=subprocess.DEVNULL,
    )
    while not started.exists():
      self.assertIsNone(running.poll())
      time.sleep(0.05)
    running.terminate()
    self.assertEqual(running.wait(timeout=30), 143)
    self.assertEqual(started.read_text().split(), tools.PROGRAM[1:])

  def test_spot_is_passed_on(self):
    self.assertIn('--spot', self.command('--tpu-type=v6e-16', '--spot'))
    self.assertNotIn('--spot', self.command('--tpu-type=v6e-16'))

  def test_the_summary_says_chips_and_how_to_plan(self):
    done = tools.python(
        '-m', 'launch.xpk', *tools.FLAGS, *_CLUSTER, '--dry-run',
        '--tpu-type=v5p-32', '--num-slices=2',
    )
    summary, plan, _ = done.stdout.splitlines()
    self.assertStartsWith(
        summary, '2 x v5p-32: 16 chips on 4 hosts (2x2x4) each;'
    )
    self.assertEqual(
        plan,
        f'fits? python -m rl_tpu plan --experiment={tools.EXPERIMENT}'
        ' --topology=v5p:2x2x4 --slices=2',
    )

  def test_the_program_takes_the_flags_that_it_is_given(self):
    command = self.command(
        '--tpu-type=v5p-8', '--set=mesh.fsdp=4', '--profile-steps=5-7'
    )
    (run,) = [w for w in command if w.startswith('--command=')]
    done = tools.python(
        '-m', 'launch.xpk', *tools.FLAGS, *_CLUSTER, '--tpu-type=v5p-8',
        '--set=mesh.fsdp=4', '--dry-run',
    )
    plan = done.stdout.splitlines()[1].removeprefix('fits? ')
    known = {verb.name: verb.flags for verb in verbs.VERBS}
    for line in (run.removeprefix('--command=exec '), plan):
      python, dash_m, package, verb, *words = shlex.split(line)
      self.assertEqual([python, dash_m, package], ['python', '-m', 'rl_tpu'])
      values = arguments.parse(verb, known[verb], words)
      self.assertIn('mesh.fsdp=4', values['set'])

  def test_it_runs_what_it_prints_and_returns_its_exit_code(self):
    stub = self.folder / 'xpk'
    stub.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.folder}/words\nexit 3\n'
    )
    stub.chmod(0o755)
    done = tools.python(
        '-m', 'launch.xpk', *tools.FLAGS, *_CLUSTER, '--tpu-type=v5p-8',
        env={'PATH': f'{self.folder}:{os.environ["PATH"]}'},
    )
    self.assertEqual(done.returncode, 3)
    self.assertEqual(
        (self.folder / 'words').read_text().splitlines(),
        shlex.split(done.stdout.splitlines()[-1])[1:],
    )


if __name__ == '__main__':
  absltest.main()
