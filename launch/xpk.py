"""Starts a run on a GKE cluster that was made with xpk.

    python -m launch.xpk --experiment=experiments/x.py --cluster=NAME \\
        --tpu-type=v5p-128 --num-slices=2 --docker-image=IMAGE \\
        --workdir=gs://BUCKET/FOLDER [--dry-run]

Every host runs the same program, joined by jax.distributed.
"""

import argparse
import re
import shlex
import sys

from launch import commandline
from launch import gke
from launch import job as job_lib

INSTALL = 'pipx install xpk==1.16.0'
# GKE has it, but xpk 1.16.0 starts at eight chips.
_NOT_IN_XPK = 'v5litepod-4'
_CLUSTER = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')


def add_cluster_flags(parser: commandline.Parser) -> None:
  """Adds where the cluster is."""
  add = parser.add_argument
  add('--cluster', required=True, help='name of the cluster')
  add('--project', help='of the cluster (default: that of gcloud)')
  add('--zone', help='of the cluster (default: that of gcloud)')
  add('--dry-run', action='store_true', help='print the command only')


def cluster_words(
    values: argparse.Namespace, job: job_lib.Job, environment: dict[str, str]
) -> list[str]:
  """Words of an xpk command that its two kinds of workload share.

  Raises:
    ValueError: a cluster, zone or type that xpk could not find.
  """
  if not _CLUSTER.fullmatch(values.cluster):
    raise ValueError(
        f'--cluster={values.cluster}: no cluster has such a name; it is at most'
        ' 40 lower-case letters, digits and hyphens, a letter first.'
    )
  if values.zone:
    job_lib.check_zone(values.zone)
  if job.part.accelerator_type == _NOT_IN_XPK:
    raise ValueError(
        f'--tpu-type={_NOT_IN_XPK}: xpk has no such type; use launch.jobset.'
    )
  # exec: the signal that ends the pod must reach the program, not a shell.
  program = shlex.join(('exec', *job.program))
  words = [
      f'--cluster={values.cluster}',
      f'--workload={job.name}',
      f'--tpu-type={job.part.accelerator_type}',
      f'--num-slices={job.num_slices}',
      f'--docker-image={job.image}',
      f'--command={program}',
      f'--termination-grace-period-seconds={values.grace_seconds}',
  ]
  words += [f'--env={name}={value}' for name, value in environment.items()]
  for name in ('project', 'zone'):
    if getattr(values, name):
      words.append(f'--{name}={getattr(values, name)}')
  if job.spot:
    words.append('--spot')
  return words


def launch(values: argparse.Namespace) -> int:
  """Checks, prints the command and runs it."""
  job = job_lib.read(values)
  command = ['xpk', 'workload', 'create']
  command += cluster_words(values, job, job.libtpu_environment)
  command.append(f'--max-restarts={values.max_restarts}')
  codes = gke.restart_codes(values)
  if codes:
    command.append(f'--restart-on-exit-codes={",".join(map(str, codes))}')
  print(job.summary)
  return commandline.run(command, install=INSTALL, dry_run=values.dry_run)


def parser() -> commandline.Parser:
  """The flags."""
  made = commandline.Parser('launch.xpk', 'Starts a run on an xpk cluster.')
  job_lib.add_flags(made)
  add_cluster_flags(made)
  gke.add_restart_flags(made)
  return made


if __name__ == '__main__':
  sys.exit(commandline.main(parser(), launch, sys.argv[1:]))
