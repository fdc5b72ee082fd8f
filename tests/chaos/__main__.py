"""Does a run bear what befalls it, seen from outside?

    python -m tests.chaos --kills=50 --devices=1    # Or 8.
    python -m tests.chaos --kills=50 --devices=1 --processes=2
    python -m tests.chaos --kills=50 --devices=8 --experiment=FILE
    python -m tests.chaos --faults=30
    python -m tests.chaos --long=500
    python -m tests.chaos --costs=12
    python -m tests.chaos --costs=8 --devices=8 --experiment=FILE

--kills: a run that is killed anywhere goes on as if nothing had happened.
--faults: what fails costs its own rollout, and nothing else.
--long: many updates leave it as large as it was.
--costs: what a save costs an update, and a resume a run. Nothing can fail.

Not part of the test run, which has short forms (tests/launch/chaos_test.py).
Exit code 1 where it does not.
"""

import argparse
import collections
import pathlib
import random
import sys
import tempfile
import time

import rich.console
import rich.table

from tests import conftest  # Sets the compilation cache before jax is imported.
from tests import tiny
from tests.chaos import costs
from tests.chaos import faults
from tests.chaos import kills as kills_lib
from tests.chaos import long
from tests.chaos import stages
from tests.launch import chatter

del conftest

# Of a run that is killed: something of everything in six updates.
_KILLED = (
    'checkpoint.every=1', 'checkpoint.keep=3', 'evaluation.every=3',
    'evaluation.tasks=8', 'evaluation.final_tasks=8', 'time_limit_s=None',
    'sampler.deterministic=true',
)


def main() -> int:
  """Runs the check."""
  parser = argparse.ArgumentParser(
      prog='tests.chaos',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--kills', type=int, default=50, help='kills in all (default 50)')
  add('--devices', type=int, default=1, help='CPU devices (default 1)')
  add(
      '--processes', type=int, default=1,
      help='of a run that is killed, with as many devices each (default 1)',
  )
  add('--steps', type=int, default=6, help='updates of a run (default 6)')
  add('--seed', type=int, default=0, help='of the instants (default 0)')
  add('--faults', type=int, metavar='N', help='N updates instead of kills')
  add('--long', type=int, metavar='N', help='N updates instead of kills')
  add('--costs', type=int, metavar='N', help='N updates instead of kills')
  add(
      '--experiment', type=pathlib.Path,
      help='for --kills and --costs; else a tiny one'
  )
  arguments = parser.parse_args()
  if arguments.experiment and (arguments.faults or arguments.long):
    parser.error('--experiment: of --kills and --costs only')
  others = arguments.faults or arguments.long or arguments.costs
  if not others and not stages.TOOL.exists():
    parser.error('--kills: it needs py-spy: bash launch/setup.sh test chaos')
  console = rich.console.Console(width=120)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    experiment = arguments.experiment or chatter.write_experiment(
        folder, tiny.model_folder(folder)
    )
    for room in (faults, long):
      steps = getattr(arguments, room.__name__.rpartition('.')[2])
      if steps:
        return room.check(experiment, folder, steps=steps, console=console)
    if arguments.costs:
      return costs.check(
          experiment, folder, steps=arguments.costs,
          devices=arguments.devices, console=console,
      )
    return check(arguments, experiment, folder, console)


def check(
    arguments: argparse.Namespace,
    experiment: pathlib.Path,
    folder: pathlib.Path,
    console: rich.console.Console,
) -> int:
  """Makes the kills and prints the table."""
  command = ['rl_tpu']
  if arguments.processes > 1:
    command = [
        'launch.processes', f'--processes={arguments.processes}',
        f'--devices={arguments.devices}', '--',
    ]

  def begin(workdir, steps=arguments.steps):
    return kills_lib.start(
        experiment, workdir, steps=steps, devices=arguments.devices,
        log=folder / f'{workdir.name}.log', changes=_KILLED, command=command,
    )

  def timed(workdir, steps=arguments.steps):
    """Seconds of a run and those to its first checkpoint; none if it failed."""
    before, first = kills_lib.whole_steps(workdir), None
    process, begun = begin(workdir, steps), time.monotonic()
    while process.poll() is None:
      if first is None and kills_lib.whole_steps(workdir) != before:
        first = time.monotonic() - begun
      time.sleep(0.05)
    if kills_lib.has_failed(process, folder / f'{workdir.name}.log', console):
      return None
    return time.monotonic() - begun, first

  whole, cold = folder / 'whole', folder / 'cold'
  # The first one fills the compilation cache; the last one is a resume.
  times = [timed(cold), timed(whole), timed(cold, arguments.steps + 1)]
  if None in times:
    return 1
  (seconds, first), (_, again) = times[1:]
  update_s = (seconds - first) / arguments.steps
  console.print(
      f'a whole run takes {seconds:.0f} s, {first:.0f} s of them to its first'
      f' checkpoint; a resume takes {again:.0f} s to its first'
  )
  draw, made, runs, different = random.Random(arguments.seed), [], 0, []
  wanted = kills_lib.state(whole, arguments.steps)
  while len(made) < arguments.kills:
    workdir = folder / f'killed{runs}'
    for kill in kills_lib.killed_run(
        lambda workdir=workdir: begin(workdir), workdir, draw=draw,
        starts_s=(first, again), update_s=update_s,
        most=arguments.kills - len(made),
    ):
      made.append(kill)
      console.print(
          f'kill {len(made)}: run {runs}, after {kill.after_s:.1f} s,'
          f' checkpoint {kill.step}, {kill.where}, all ended'
          f' {kill.ended_s:.1f} s later, workers left {kill.left}'
      )
    found = kills_lib.state(workdir, arguments.steps)
    different += [
        f'run {runs}: {name}' for name in wanted if found[name] != wanted[name]
    ]
    runs += 1
  table = rich.table.Table(
      'killed in', 'times', 'all ended after s', 'workers left'
  )
  counted = collections.Counter(kill.where for kill in made)
  for where, count in counted.most_common():
    there = [kill for kill in made if kill.where == where]
    table.add_row(
        where,
        str(count),
        f'{max(kill.ended_s for kill in there):.1f}',
        str(sum(kill.left for kill in there)),
    )
  console.print(table)
  console.print(
      f'{len(made)} kills, {runs} runs of {arguments.steps} updates'
      f' (processes: {arguments.processes}, devices of each:'
      f' {arguments.devices}); different from the run that nobody killed:'
      f' {", ".join(different) or "nothing"}'
  )
  return int(bool(different) or any(kill.left for kill in made))


if __name__ == '__main__':
  sys.exit(main())
