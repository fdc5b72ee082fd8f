"""A run on TPU VMs from a queue, without Kubernetes (v4, v5e, v5p, v6e).

    python -m launch.queued_resources --experiment=experiments/x.py \\
        --zone=us-east5-a --tpu-type=v5p-32 --docker-image=IMAGE \\
        --workdir=gs://BUCKET/FOLDER [--spot] [--step=create]

Prints the commands of all steps, in their order; --step runs one of them. A run
whose machines were taken away is not started again: create and run once more,
and it resumes.
"""

import argparse
import re
import shlex
import sys

from launch import commandline
from launch import job as job_lib

INSTALL = 'cloud.google.com/sdk/docs/install'
_DURATION = re.compile(r'[1-9][0-9]*[hmd]')
# Registries that gcloud can log docker in to.
_GOOGLE_REGISTRY = re.compile(r'([^/]+\.pkg\.dev|([a-z]+\.)?gcr\.io)/')


def steps(
    job: job_lib.Job, values: argparse.Namespace
) -> dict[str, tuple[str, ...]]:
  """Step -> command.

  Raises:
    ValueError: chips, a zone or a duration that there are not.
  """
  runtime = job.part.generation.vm_runtime
  if runtime is None:
    raise ValueError(
        f'--tpu-type={job.part.accelerator_type}: the Cloud TPU API, and with'
        ' it the queue, does not serve TPU7x and later; use launch.xpk or'
        ' launch.jobset.'
    )
  job_lib.check_zone(values.zone)
  if not _DURATION.fullmatch(values.valid_until):
    raise ValueError(
        f'--valid-until={values.valid_until}: write a duration such as 6h.'
    )
  nodes = (
      (f'--node-id={job.name}',)
      if job.num_slices == 1
      else (f'--node-count={job.num_slices}', f'--node-prefix={job.name}')
  )
  spot = ('--spot',) if job.spot else ()

  def queue(verb: str, *words: str) -> tuple[str, ...]:
    where = [f'--zone={values.zone}']
    if values.project:
      where.append(f'--project={values.project}')
    return (
        'gcloud',
        'compute',
        'tpus',
        'queued-resources',
        verb,
        job.name,
        *where,
        *words,
    )

  def everywhere(line: str) -> tuple[str, ...]:
    return queue('ssh', '--node=all', '--worker=all', f'--command={line}')

  return {
      'create': queue(
          'create',
          *nodes,
          f'--accelerator-type={job.part.accelerator_type}',
          f'--runtime-version={runtime}',
          *spot,
          f'--valid-until-duration={values.valid_until}',
      ),
      'status': queue('describe', '--format=value(state.state)'),
      'run': everywhere(_docker_run(job)),
      'logs': everywhere(f'sudo docker logs --tail=20 {job.name}'),
      'stop': everywhere(f'sudo docker stop --time=600 {job.name}'),
      'delete': queue('delete', '--force', '--quiet'),
  }


def _docker_run(job: job_lib.Job) -> str:
  """Replaces the container of an earlier run, if there is one."""
  remove = f'sudo docker rm --force {job.name} 2>/dev/null; '
  found = _GOOGLE_REGISTRY.match(job.image)
  login = ''
  if found:
    login = f'sudo gcloud auth configure-docker {found[1]} --quiet && '
  # docs.cloud.google.com/tpu/docs/run-in-container: the chips are devices of
  # the host, and hosts find each other by its network.
  words = ['sudo', 'docker', 'run', '--detach', f'--name={job.name}',
           '--privileged', '--network=host', '--shm-size=16g']
  variables = job.libtpu_environment
  words += [f'--env={name}={value}' for name, value in variables.items()]
  run = shlex.join([*words, job.image, *job.program])
  return remove + login + run


def launch(values: argparse.Namespace) -> int:
  """Prints all steps, or runs one."""
  job = job_lib.read(values)
  commands = steps(job, values)
  if values.step:
    return commandline.run(
        commands[values.step], install=INSTALL, dry_run=values.dry_run
    )
  print(job.summary)
  for step, command in commands.items():
    print(f'# {step}\n{shlex.join(command)}')
  return 0


def parser() -> commandline.Parser:
  """The flags."""
  made = commandline.Parser(
      'launch.queued_resources', 'A run on TPU VMs from a queue.'
  )
  job_lib.add_flags(made)
  add = made.add_argument
  add('--zone', required=True, help='of the machines')
  add('--project', help='(default: that of gcloud)')
  add(
      '--valid-until',
      default='6h',
      metavar='DURATION',
      help='the request is dropped if it waits longer (default 6h)',
  )
  add(
      '--step',
      choices=('create', 'status', 'run', 'logs', 'stop', 'delete'),
      help='run one of them (default: print all)',
  )
  add('--dry-run', action='store_true', help='print only, also with --step')
  return made


if __name__ == '__main__':
  sys.exit(commandline.main(parser(), launch, sys.argv[1:]))
