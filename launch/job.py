"""The run that is launched: flags that all launchers take, and their checks."""

import argparse
import dataclasses
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from launch import chips
from launch import commandline
from launch import libtpu

_PROGRAM = ('python', '-m', 'rl_tpu')
ROOT = pathlib.Path(__file__).resolve().parent.parent
# xpk's rule, which leaves room for what JobSet adds to the names of pods.
_NAME = re.compile(r'[a-z]([-a-z0-9]{0,37}[a-z0-9])?')
_BUCKET = re.compile(r'gs://[a-z0-9][-a-z0-9._]+[a-z0-9](/.*)?')
_VARIABLE = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)=(.*)')
_ZONE = re.compile(r'[a-z]+-[a-z]+[0-9]+-[a-z]')
_STEPS = re.compile(r'([1-9][0-9]*)-([1-9][0-9]*)')


@dataclasses.dataclass(frozen=True)
class Job:
  """A checked run.

  Attributes:
    name: of the workload.
    part: one slice.
    num_slices: how many of them.
    image: of the container.
    workdir: on gs://.
    program: words of the program that each host runs.
    environment: its environment variables.
    libtpu_flags: as LIBTPU_INIT_ARGS takes them; empty is none.
    spot: on machines that may be taken away.
    summary: of the chips, and how to see whether the run fits on them.
  """

  name: str
  part: chips.Slice
  num_slices: int
  image: str
  workdir: str
  program: tuple[str, ...]
  environment: Mapping[str, str]
  libtpu_flags: str
  spot: bool
  summary: str

  @property
  def libtpu_environment(self) -> dict[str, str]:
    """Where a host compiles for its own chips, they are read from here."""
    found = {'LIBTPU_INIT_ARGS': self.libtpu_flags} if self.libtpu_flags else {}
    return found | self.environment


def add_flags(parser: commandline.Parser) -> None:
  """Adds the flags that every launcher takes."""
  add = parser.add_argument
  add('--experiment', required=True, help='experiment file of the repository')
  add('--workdir', required=True, help='gs://BUCKET/FOLDER; a used one resumes')
  add('--tpu-type', required=True, help='of a slice, such as v5p-128')
  add('--num-slices', type=int, default=1, help='slices (default 1)')
  add('--docker-image', required=True, help='made from launch/Dockerfile')
  add('--workload', help='name of the job (default: of the experiment)')
  add(
      '--set',
      action='append',
      default=[],
      metavar='PATH=VALUE',
      help='override of a setting; may be repeated',
  )
  add(
      '--env',
      action='append',
      default=[],
      metavar='NAME=VALUE',
      help='environment variable of the run; may be repeated',
  )
  add('--profile-steps', metavar='FIRST-LAST', help='updates to trace: 5-7')
  add(
      '--libtpu-presets',
      default='',
      metavar='NAME,NAME',
      help=f'flags of libtpu: {", ".join(libtpu.PRESETS)} (default none)',
  )
  add('--spot', action='store_true', help='machines that may be taken away')


def read(
    values: argparse.Namespace, defaults: Mapping[str, str] | None = None
) -> Job:
  """Checks the flags that every launcher takes.

  Args:
    values: of the flags.
    defaults: environment variables that the launcher sets; those of a host
      with TPU chips if None.

  Raises:
    ValueError: a flag that cannot work, the experiment's settings among them.
  """
  part = chips.find(values.tpu_type)
  if values.num_slices < 1:
    raise ValueError(f'--num-slices={values.num_slices}: at least 1.')
  workdir = _workdir(values.workdir)
  presets = list(filter(None, values.libtpu_presets.split(',')))
  flags = libtpu.flags(presets, part.generation.name)
  environment = host_environment(workdir) if defaults is None else defaults
  environment = {**environment, **_environment(values.env, flags)}
  overrides = [*values.set, *_profile(values.profile_steps)]
  experiment, settings = _settings(values.experiment, overrides)
  mesh = _mesh(settings['mesh'], part, values.num_slices)
  name = values.workload or settings['name'].replace('_', '-')
  if not _NAME.fullmatch(name):
    raise ValueError(
        f'--workload={name}: use at most 39 lower-case letters, digits and'
        ' hyphens, a letter first and no hyphen last.'
    )
  words = [f'--experiment={experiment}']
  changes = [f'--set={override}' for override in overrides]
  return Job(
      name=name,
      part=part,
      num_slices=values.num_slices,
      image=values.docker_image,
      workdir=workdir,
      program=(*_PROGRAM, 'train', *words, f'--workdir={workdir}', *changes),
      environment=environment,
      libtpu_flags=flags,
      spot=values.spot,
      summary='\n'.join((
          (
              f'{values.num_slices} x {values.tpu_type}: {part.chips} chips on'
              f' {part.hosts} hosts ({part.topology}) each; {mesh}'
          ),
          'fits? '
          + shlex.join((
              *_PROGRAM,
              'plan',
              *words,
              f'--topology={part.plan_topology}',
              f'--slices={values.num_slices}',
              *changes,
          )),
      )),
  )


def check_zone(zone: str) -> None:
  """Refuses what is no zone, a region above all.

  Raises:
    ValueError: with an example.
  """
  if not _ZONE.fullmatch(zone):
    raise ValueError(
        f'--zone={zone}: a zone is a region and a letter, such as us-east5-a.'
    )


def host_environment(workdir: str) -> dict[str, str]:
  """Variables of a process on a host with TPU chips."""
  return {
      # Without it JAX falls back to the CPU when the chips do not start
      # (docs.jax.dev, jax 0.3.22), and the pod is paid for nothing.
      'JAX_PLATFORMS': 'tpu,cpu',
      # The hosts find each other as JAX does it on TPU machines.
      'RL_TPU_PROCESSES': 'auto',
      # docs.jax.dev/en/latest/persistent_compilation_cache.html: a job that
      # starts again does not compile again.
      'JAX_COMPILATION_CACHE_DIR': f'{workdir}/compilation_cache',
  }


def _workdir(text: str) -> str:
  if not _BUCKET.fullmatch(text):
    raise ValueError(
        f'--workdir={text}: what a pod writes to its disk ends with it; name a'
        ' folder on gs://, such as gs://my-bucket/runs/first.'
    )
  return text.rstrip('/')


def _profile(steps: str | None) -> list[str]:
  """The settings that trace some updates."""
  if steps is None:
    return []
  found = _STEPS.fullmatch(steps)
  if not found or int(found[1]) > int(found[2]):
    raise ValueError(f'--profile-steps={steps}: write first-last, such as 5-7.')
  return [f'log.profile_first={found[1]}', f'log.profile_last={found[2]}']


def _settings(
    experiment: str, overrides: Sequence[str]
) -> tuple[str, Mapping[str, object]]:
  """Path in the repository, and settings with overrides."""
  path = pathlib.Path(experiment).resolve()
  if not path.is_relative_to(ROOT):
    raise ValueError(
        f'--experiment={experiment}: it is outside the repository, which is'
        ' all that the container image holds.'
    )
  inside = path.relative_to(ROOT).as_posix()
  done = subprocess.run(
      [
          sys.executable,
          '-m',
          'rl_tpu',
          'config',
          f'--experiment={inside}',
          *(f'--set={override}' for override in overrides),
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
  )
  if done.returncode:
    last = (done.stderr.strip() or 'no output').splitlines()[-1]
    raise ValueError(last.removeprefix('rl_tpu: '))
  return inside, json.loads(done.stdout)


def _mesh(sizes: Mapping[str, int], part: chips.Slice, num_slices: int) -> str:
  """The mesh in words.

  Raises:
    ValueError: its axes do not fit the devices or the slices.
  """
  text = ', '.join(f'mesh.{axis} = {size}' for axis, size in sizes.items())
  taken = math.prod(size for size in sizes.values() if size != -1)
  devices = num_slices * part.devices
  is_open = -1 in sizes.values()
  if devices % taken or (not is_open and taken != devices):
    raise ValueError(
        f'{text}: the mesh needs {"a multiple of " if is_open else ""}{taken}'
        f' devices, {num_slices} x {part.accelerator_type} has {devices}'
        f' ({num_slices * part.chips} chips).'
    )
  data = devices // taken if sizes['data'] == -1 else sizes['data']
  if data % num_slices:
    raise ValueError(
        f'{text}: mesh.data becomes {data}, which {num_slices} slices do not'
        ' divide; no other axis crosses between slices.'
    )
  return text


def _environment(pairs: Sequence[str], flags: str) -> dict[str, str]:
  found = {}
  for pair in pairs:
    parts = _VARIABLE.fullmatch(pair)
    if not parts:
      raise ValueError(f'--env={pair}: write NAME=VALUE.')
    found[parts[1]] = parts[2]
  if flags and 'LIBTPU_INIT_ARGS' in found:
    raise ValueError(
        '--env=LIBTPU_INIT_ARGS: --libtpu-presets sets it too; use one of them.'
    )
  return found
