"""Writes a run as a JobSet, for a GKE cluster that xpk did not make.

    python -m launch.jobset --experiment=experiments/x.py --tpu-type=v5p-128 \\
        --num-slices=2 --docker-image=IMAGE --workdir=gs://BUCKET/FOLDER \\
        [--queue=NAME] [--output=FILE]

The cluster needs the JobSet controller and node pools of that TPU type. Without
--output the YAML goes to standard output, and all else to standard error.
"""

import argparse
import json
import pathlib
import re
import shlex
import string
import sys
from collections.abc import Mapping

from launch import chips
from launch import commandline
from launch import gke
from launch import job as job_lib

_TEMPLATE = pathlib.Path(__file__).resolve().parent / 'jobset.yaml'
_QUEUE = re.compile(r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?')
_FAULTS = (1, commandline.MISTAKE)
_SPOT = 'cloud.google.com/gke-spot'


def render(job: job_lib.Job, values: argparse.Namespace) -> str:
  """The YAML of a job.

  Raises:
    ValueError: a queue or an exit code that there cannot be.
  """
  if values.queue and not _QUEUE.fullmatch(values.queue):
    raise ValueError(
        f'--queue={values.queue}: no queue of Kueue has such a name.'
    )
  codes = gke.restart_codes(values)
  template = string.Template(_TEMPLATE.read_text(encoding='utf-8'))
  # JSON is YAML, with quotes wherever a text could be read as something else.
  return template.substitute(
      summary=job.summary.replace('\n', '\n# '),
      name=job.name,
      queue=(
          f'\n  labels:\n    kueue.x-k8s.io/queue-name: {values.queue}'
          if values.queue
          else ''
      ),
      max_restarts=values.max_restarts,
      num_slices=job.num_slices,
      hosts=job.part.hosts,
      final_codes=json.dumps([code for code in _FAULTS if code not in codes]),
      grace_seconds=values.grace_seconds,
      accelerator=job.part.generation.gke_accelerator,
      topology=job.part.topology,
      spot_selector=(f'\n{" " * 16}{_SPOT}: "true"' if job.spot else ''),
      spot_toleration=(
          f'\n{" " * 16}- key: {_SPOT}\n{" " * 18}operator: Exists'
          if job.spot
          else ''
      ),
      image=json.dumps(job.image),
      command=json.dumps(job.program),
      environment=_environment(job.libtpu_environment),
      chips_per_host=chips.CHIPS_PER_HOST,
  )


def _environment(variables: Mapping[str, str]) -> str:
  indent = ' ' * 20
  return ''.join(
      f'\n{indent}- name: {name}\n{indent}  value: {json.dumps(value)}'
      for name, value in variables.items()
  )


def launch(values: argparse.Namespace) -> int:
  """Writes the YAML and says how to apply it."""
  job = job_lib.read(values)
  text = render(job, values)
  if not values.output:
    print(text, end='')
    print(
        f'{job.summary}\nappend to apply it: | kubectl apply -f -',
        file=sys.stderr,
    )
    return 0
  try:
    pathlib.Path(values.output).write_text(text, encoding='utf-8')
  except OSError as error:
    raise ValueError(f'--output={values.output}: {error.strerror}.') from error
  print(job.summary, file=sys.stderr)
  print(shlex.join(('kubectl', 'apply', '-f', values.output)))
  return 0


def parser() -> commandline.Parser:
  """The flags."""
  made = commandline.Parser('launch.jobset', 'Writes a run as a GKE JobSet.')
  job_lib.add_flags(made)
  made.add_argument('--queue', help='of Kueue (default none)')
  made.add_argument('--output', help='file (default: standard output)')
  gke.add_restart_flags(made)
  return made


if __name__ == '__main__':
  sys.exit(commandline.main(parser(), launch, sys.argv[1:]))
