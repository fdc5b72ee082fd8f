"""Several processes on loopback: what the hosts of a pod do without Pathways.

A tiny run on four CPU devices: one process that has them all, two with two
each, four with one each.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil

from launch import processes
from rl_tpu.records import jsonl
from tests import tiny
from tests.chaos import kills
from tests.launch import chatter

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_SMALL = (
    'steps=3',
    # Parameters and rows are split over the processes.
    'mesh.fsdp=2',
    'batching.tasks_per_batch=16',
    'sampler.slots=8',
    'evaluation.temperatures=1.0',
    'alignment.enabled=false',
    'sampler.deterministic=true',
)
_DEVICES = 4
# Of a run that starts cold on a busy machine.
_LONG_S = 600


def _start(count, words, **options):
  return processes.start(words, count, _DEVICES // count, cwd=_ROOT, **options)


def _finish(started):
  """Waits for all; what they printed, and their exit codes."""
  printed = [p.communicate(timeout=_LONG_S)[0] for p in started]
  return printed, [p.returncode for p in started]


def _first_difference(one, other):
  """Names the first token that two runs do not have in common."""
  for step in jsonl.steps(one):
    a, b = tiny.tokens(one, step), tiny.tokens(other, step)
    for key in sorted(a.keys() | b.keys()):
      left, right = a.get(key, []), b.get(key, [])
      if left != right:
        place = next(
            (i for i, (x, y) in enumerate(zip(left, right)) if x != y),
            min(len(left), len(right)),
        )
        return (
            f'update {step}, rollout {key[0]}, segment {key[1]}, token {place}'
        )
  return None


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _child_of(process):
  """The process below the one that guards it."""
  (child,) = [
      c for c in psutil.Process(process.pid).children()
      if 'rl_tpu' in c.cmdline()
  ]
  return child


def _wait_for_update(workdir, update, started):
  """Returns when an update's checkpoint is whole."""
  deadline = time.monotonic() + _LONG_S
  path = pathlib.Path(workdir) / 'checkpoints' / str(update)
  while not (path / '_CHECKPOINT_METADATA').exists():
    for process in started:
      if process.poll() is not None:
        raise AssertionError(process.communicate()[0])
    if time.monotonic() > deadline:
      raise AssertionError(f'no update {update} after {_LONG_S} s')
    time.sleep(0.2)


class HostsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.folder = pathlib.Path(folder)
    cls.experiment = chatter.write_experiment(
        cls.folder, tiny.model_folder(cls.folder), *_SMALL
    )
    cls.printed = {}
    for count in (1, 2, 4):
      # Every exchange compares the schedulers, too.
      words = cls._words(cls.folder / f'of{count}', 'sampler.check_every=1')
      printed, codes = _finish(
          _start(
              count,
              [cls.folder / f'gradients{count}.npz', *words],
              module='tests.launch.hosts_run',
          )
      )
      assert codes == [0] * count, '\n'.join(printed)
      cls.printed[count] = printed

  @classmethod
  def _words(cls, workdir, *changes):
    return [
        'train',
        f'--experiment={cls.experiment}',
        f'--workdir={workdir}',
        *(f'--set={change}' for change in changes),
    ]

  @parameterized.parameters(2, 4)
  def test_runs_agree_token_by_token(self, count):
    alone, workdir = self.folder / 'of1', self.folder / f'of{count}'
    self.assertEqual(jsonl.steps(workdir), [1, 2, 3])
    self.assertIsNone(_first_difference(alone, workdir))
    # Something was cut: the rollouts are not trivial.
    self.assertGreater(len(tiny.tokens(workdir, 3)), 16)

  @parameterized.parameters(2, 4)
  def test_G32_gradients_of_the_same_rollouts(self, count):
    found = {}
    for number in (1, count):
      with np.load(self.folder / f'gradients{number}.npz') as arrays:
        found[number] = dict(arrays)
    self.assertEqual(found[1].keys(), found[count].keys())
    for name, wanted in found[1].items():
      # Sums over tokens: what cancels is small beside what was added.
      atol = 1e-6 * max(np.abs(wanted).max(), 1e-3)
      np.testing.assert_allclose(
          found[count][name], wanted, rtol=1e-5, atol=atol, err_msg=name
      )
    for network in ('actor', 'critic'):
      largest = max(
          np.abs(array).max()
          for name, array in found[1].items()
          if f"['{network}']" in name
      )
      self.assertGreater(largest, 1e-4)

  def test_what_waits_in_host_memory_changes_no_number(self):
    workdir = self.folder / 'hosted'
    parts = 'optimizers', 'critic', 'reference'
    changes = [f'memory.{part}=host' for part in parts]
    printed, codes = _finish(_start(2, self._words(workdir, *changes)))
    self.assertEqual(codes, [0, 0], '\n'.join(printed))
    whole = kills.state(self.folder / 'of2', 3)
    self.assertEqual(kills.state(workdir, 3)['arrays'], whole['arrays'])
    moved = [
        line['perf/host_transfer_gib'] for line in _lines(workdir)
        if 'perf/host_transfer_gib' in line
    ]
    self.assertLen(moved, 3)
    self.assertGreater(min(moved), 0)

  @parameterized.parameters(2, 4)
  def test_files_are_written_once_and_count_everything(self, count):
    workdir, printed = self.folder / f'of{count}', self.printed[count]
    self.assertEqual(printed[0].count('update 1/3'), 1)
    for text in printed[1:]:
      self.assertNotIn('update 1/3', text)
    self.assertLen(list((workdir / 'tb').iterdir()), 1)
    started = {
        line['step']: line['rollout/started']
        for line in _lines(workdir) if 'rollout/started' in line
    }
    self.assertEqual(started, {1: 16, 2: 32, 3: 48})

  def test_a_killed_process_ends_all_and_the_run_resumes(self):
    workdir = self.folder / 'killed'
    started = _start(2, self._words(workdir, 'steps=100'))
    _wait_for_update(workdir, 1, started)
    _child_of(started[1]).send_signal(signal.SIGKILL)
    begin = time.monotonic()
    printed, codes = _finish(started)
    self.assertLess(time.monotonic() - begin, 60)
    self.assertEqual(codes, [134, 137])
    self.assertIn('another process of the run was lost', printed[0])
    self.assertIn('goes on from its last checkpoint', printed[0])
    reached = max(
        int(p.name) for p in (workdir / 'checkpoints').iterdir()
        if p.name.isdigit()
    )
    # On another number of processes, and back.
    for more, count in ((1, 1), (2, 2)):
      printed, codes = _finish(
          _start(count, self._words(workdir, f'steps={reached + more}'))
      )
      self.assertEqual(codes, [0] * count, '\n'.join(printed))
      self.assertIn(
          f'resumed after update {reached + more - 1}', printed[0]
      )
    self.assertEqual(jsonl.steps(workdir), list(range(1, reached + 3)))

  def test_sigterm_to_one_process_stops_all_at_the_same_update(self):
    workdir = self.folder / 'stopped'
    started = _start(2, self._words(workdir, 'steps=100'))
    _wait_for_update(workdir, 1, started)
    started[1].send_signal(signal.SIGTERM)
    printed, codes = _finish(started)
    self.assertEqual(codes, [143, 143], '\n'.join(printed))
    last = jsonl.steps(workdir)[-1]
    self.assertTrue(
        (workdir / 'checkpoints' / str(last) / '_CHECKPOINT_METADATA').exists()
    )

  def test_processes_with_other_settings_are_refused(self):
    address = processes.free_address()
    both = [
        subprocess.Popen(
            [sys.executable, '-m', 'rl_tpu',
             *self._words(self.folder / 'other', f'seed={index}')],
            env=os.environ | processes.environment(2, index, 2, address),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=_ROOT,
        )
        for index in (0, 1)
    ]
    printed, codes = _finish(both)
    self.assertEqual(codes, [2, 2], '\n'.join(printed))
    self.assertRegex(
        printed[1],
        r'rl_tpu: process 1 and process 0 .*different settings: seed;',
    )
    self.assertFalse((self.folder / 'other').exists())

  def test_a_mistake_is_one_line_of_each(self):
    printed, codes = _finish(
        _start(2, self._words(self.folder / 'mistake', 'sampler.devices=2'))
    )
    self.assertEqual(codes, [2, 2], '\n'.join(printed))
    for text in printed:
      lines = re.findall(r'^rl_tpu: .*$', text, re.MULTILINE)
      self.assertEqual(len(lines), 1, text)
      self.assertIn('sampler.devices = 2: with 2 processes', lines[0])

  def test_other_verbs_run_in_one_process(self):
    printed, codes = _finish(
        _start(2, ['evaluate', f'--workdir={self.folder / "of1"}'])
    )
    self.assertEqual(codes, [2, 2])
    self.assertIn('RL_TPU_PROCESSES=2: evaluate runs in one', printed[0])


class CommandTest(absltest.TestCase):

  def _run(self, *words):
    return subprocess.run(
        [sys.executable, '-m', 'launch.processes', *words],
        capture_output=True, text=True, timeout=60, cwd=_ROOT, check=False,
    )

  def test_lines_bear_the_number_of_their_process(self):
    done = self._run(
        '--processes=2', '--devices=1', '--',
        'config', '--experiment=experiments/none.py',
    )
    self.assertEqual(done.returncode, 2)
    for index in (0, 1):
      self.assertIn(f'[{index}] rl_tpu: ', done.stdout)

  def test_a_dry_run_prints_what_could_be_pasted(self):
    done = self._run('--dry-run', '--devices=3', '--', 'train', '--set=a b')
    self.assertEqual(done.returncode, 0, done.stderr)
    first, second = done.stdout.splitlines()
    self.assertIn('RL_TPU_PROCESSES=2 RL_TPU_PROCESS=0 ', first)
    self.assertIn('RL_TPU_PROCESSES=2 RL_TPU_PROCESS=1 ', second)
    self.assertEndsWith(first, " python -m rl_tpu train '--set=a b'")

  def test_a_count_below_one(self):
    done = self._run('--processes=0', '--', 'train')
    self.assertEqual(done.returncode, 2)
    self.assertEqual(
        done.stderr.strip(), 'launch.processes: --processes=0: at least 1.'
    )


if __name__ == '__main__':
  absltest.main()
