"""Starts a run under Pathways: one process steers the chips of all hosts.

    python -m launch.pathways --experiment=experiments/x.py --cluster=NAME \\
        --tpu-type=v5p-128 --num-slices=2 --docker-image=IMAGE \\
        --workdir=gs://BUCKET/FOLDER [--dry-run]

The cluster is one of `xpk cluster create-pathways`. In the container of the
program xpk sets JAX_PLATFORMS=proxy and JAX_BACKEND_TARGET, by which the
program knows that it has to call pathwaysutils.initialize().
"""

import argparse
import sys

from launch import commandline
from launch import gke
from launch import job as job_lib
from launch import xpk

# Built for the jax of constraints.txt: client and servers speak one version.
VERSION = '20260730-jax_0.10.2'
_IMAGES = 'us-docker.pkg.dev/cloud-tpu-v2-images/pathways'
_ENVIRONMENT = {
    # Workers write their part of a checkpoint themselves (pathwaysutils).
    # There is no compilation cache among these: Pathways has its own.
    'ENABLE_PATHWAYS_PERSISTENCE': '1',
}


def launch(values: argparse.Namespace) -> int:
  """Checks, prints the command and runs it."""
  job = job_lib.read(values, _ENVIRONMENT)
  command = ['xpk', 'workload', 'create-pathways']
  command += xpk.cluster_words(values, job, job.environment)
  command += [
      f'--pathways-gcs-location={job.workdir}/pathways',
      f'--server-image={_IMAGES}/server:{values.pathways_version}',
      f'--proxy-server-image={_IMAGES}/proxy_server:{values.pathways_version}',
  ]
  if job.libtpu_flags:
    # It is the proxy that compiles.
    command.append(f'--custom-pathways-proxy-server-args={job.libtpu_flags}')
  print(job.summary)
  return commandline.run(command, install=xpk.INSTALL, dry_run=values.dry_run)


def parser() -> commandline.Parser:
  """The flags."""
  made = commandline.Parser('launch.pathways', 'Starts a run under Pathways.')
  job_lib.add_flags(made)
  xpk.add_cluster_flags(made)
  gke.add_grace_flag(made)
  made.add_argument(
      '--pathways-version',
      default=VERSION,
      metavar='TAG',
      help=f'of the images of Pathways (default {VERSION})',
  )
  return made


if __name__ == '__main__':
  sys.exit(commandline.main(parser(), launch, sys.argv[1:]))
