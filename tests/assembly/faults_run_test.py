"""A whole run whose environments and sampler fail (A5, A6, O6, K34, K35)."""

import collections
import contextlib
import io
import json
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np

from rl_tpu import trainer
from rl_tpu.assembly import watchdog
from rl_tpu.cli import main
from rl_tpu.config import overrides
from rl_tpu.learner import learner as learner_lib
from rl_tpu.metrics import tags
from rl_tpu.records import jsonl
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.types import stops
from rl_tpu.types import termination as term
from tests import faulty
from tests import tiny

STEPS = 3
CAUSES = {
    'raise': 'environment',
    'none': 'environment',
    'nan': 'environment',
    'unplugged': 'network',
    'memory': 'memory',
    'exit': 'environment',
    'hang': 'timeout',
}


class FaultsRunTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder)
    cls.config = overrides.apply(
        tiny.experiment(tiny.model_folder(cls.folder), steps=STEPS),
        [
            'environment.target=tests.faulty:FaultyArithmetic',
            'environment.isolation=process',
            'environment.step_timeout_s=1',
            'environment.memory_gib=4',
            'faults.max_share=1',
            'faults.device_wall_s=600',
            'evaluation.tasks=8',
            'evaluation.final_tasks=8',
            'log.histograms_every=1',
            'log.transcripts_every=1',
        ],
    )
    cls.workdir = str(cls.folder / 'work')
    # Five of the first update's eight fail, and six of the second's.
    limited = overrides.apply(cls.config, ['faults.max_share=0.7'])
    try:
      trainer.train(limited, cls.workdir)
    except stops.RunStopped as stopped:
      cls.report = str(stopped)
    cls.stored_then = jsonl.steps(cls.workdir)
    whole = sampler_lib.JetStreamSampler.step
    cls.failed = []

    def step(sampler):
      # In the middle of the second update, once.
      if sampler.version == 1 and not cls.failed and sampler.stats()['calls']:
        cls.failed.append(sampler.stats()['calls'])
        raise RuntimeError('the device is gone')
      return whole(sampler)

    heads = learner_lib.Learner.value_heads
    scored = []

    def value_heads(learner, params, rows):
      # Every value of the last update's batch; the first one's is scored.
      scored.append(len(rows))
      found = heads(learner, params, rows)
      return [x * np.nan for x in found] if len(scored) == STEPS - 1 else found

    watch = watchdog.Watchdog.watch
    cls.watched = []

    def watched(dog, what):
      cls.watched.append(what)
      return watch(dog, what)

    with (
        mock.patch.object(watchdog.Watchdog, 'watch', watched),
        mock.patch.object(sampler_lib.JetStreamSampler, 'step', step),
        mock.patch.object(learner_lib.Learner, 'value_heads', value_heads),
    ):
      cls.summary = trainer.train(cls.config, cls.workdir)
    text = pathlib.Path(cls.workdir, 'metrics.jsonl').read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    cls.lines = [line for line in lines if 'rollout/started' in line]
    cls.rollouts = [
        list(jsonl.read(jsonl.rollouts_path(cls.workdir, step)))
        for step in range(1, STEPS + 1)
    ]

  def test_A5_K34_K35_what_fails_is_an_infra_failure_and_no_score(self):
    seen = set()
    for rollout in sum(self.rollouts, []):
      way = faulty.way(rollout.task_id)
      seen.add(way)
      if way:
        self.assertEqual(rollout.termination, term.Termination.INFRA_FAILURE)
        self.assertEqual(rollout.fault_cause.value, CAUSES[way])
        self.assertIsNone(rollout.terminal_reward)
      else:
        self.assertNotEqual(
            rollout.termination, term.Termination.INFRA_FAILURE
        )
    self.assertGreater(len(seen), 4)

  def test_A5_A6_no_faulty_rollout_is_in_a_trained_batch(self):
    for step, (rollouts, line) in enumerate(zip(self.rollouts, self.lines), 1):
      whole = {r.rollout_id for r in rollouts if not faulty.way(r.task_id)}
      path = jsonl.estimates_path(self.workdir, step)
      trained = {data['rollout_id'] for _, data in jsonl.read_lines(path)}
      self.assertEqual(trained, whole)
      failed = len(rollouts) - len(whole)
      counts = {n: v for n, v in line.items() if n.startswith('rollout/fault/')}
      self.assertEqual(sum(counts.values()), failed)
      self.assertEqual(line['rollout/end/infra_failure'], failed / 8)

  def test_A5_the_ledger_balances(self):
    for line in self.lines:
      self.assertEqual(line['rollout/started'], 8 * line['step'])
      places = ('admitted', 'discarded', 'queued', 'running')
      self.assertEqual(
          line['rollout/started'], sum(line[f'rollout/{p}'] for p in places)
      )
      self.assertEqual(tags.unknown(set(line) - {'step', 'time'}), [])

  def test_O6_the_update_whose_sampler_failed_began_anew(self):
    self.assertLen(self.failed, 1)
    restarts = [line['rollout/sampler_restarts'] for line in self.lines]
    self.assertEqual(restarts, [0, 1, 1])
    versions = [
        {
            int(v)
            for r in rollouts
            for s in r.segments
            for v in s.behaviour_version[s.is_action]
        }
        for rollouts in self.rollouts
    ]
    self.assertEqual(versions, [{0}, {1}, {2}])

  def test_O6_all_that_waits_for_the_devices_is_watched(self):
    counts = collections.Counter(self.watched)
    rounds = counts.pop('a round of the sampler')
    self.assertGreater(rounds, STEPS)
    # One update was made before; the sampler was restarted once.
    self.assertEqual(
        counts,
        {
            'the alignment check': 1,
            'the scoring of the batch': STEPS - 1,
            'the update': STEPS - 1,
            'the publication of weights': 1 + STEPS - 1,
        },
    )

  def test_L18_values_that_are_not_finite_skip_the_step_and_are_dumped(self):
    skipped = [line['policy/steps_skipped'] for line in self.lines]
    self.assertEqual(skipped[:-1], [0] * (STEPS - 1))
    self.assertGreater(skipped[-1], 0)
    text = pathlib.Path(self.workdir, 'incidents.jsonl').read_text()
    found = [json.loads(line) for line in text.splitlines()]
    found = [line for line in found if line['kind'] == 'nonfinite']
    self.assertEqual({line['update'] for line in found}, {STEPS})
    self.assertEqual({line['network'] for line in found}, {'actor', 'critic'})
    for line in found:
      names = [tensor['name'] for tensor in line['tensors']]
      self.assertEqual(names, ['value', 'target', 'advantage'])
      self.assertIn('loss', line['in_step'])
      in_batch = {r['rollout_id'] for r in line['rollouts']}
      place = line['tensors'][0]['places'][0]
      self.assertIn(place['rollout_id'], in_batch)
      self.assertTrue(pathlib.Path(self.workdir, line['dump']).is_file())
    # The critic is as before, and what needs it is unknown, not wrong.
    estimates = list(
        jsonl.read_lines(jsonl.estimates_path(self.workdir, STEPS))
    )
    for _, data in estimates:
      for segment in data['segments']:
        for value, trained in zip(segment['value'], segment['policy_mask']):
          self.assertTrue(value is None or not trained)
    self.assertEqual(self.summary['updates'], STEPS)

  def test_A5_an_environment_that_always_fails_stops_the_run_at_once(self):
    broken = overrides.apply(
        self.config,
        ['faults.max_share=0.5', 'environment.settings.always=unplugged'],
    )
    workdir = str(self.folder / 'broken')
    with self.assertRaisesRegex(
        stops.RunStopped, 'the evaluation after update 0: 8 of 8 .* network 8'
    ):
      trainer.train(broken, workdir)
    self.assertEmpty(jsonl.steps(workdir))

  def test_A5_an_evaluation_by_itself_is_stopped_on_in_one_line(self):
    words = [f'--workdir={self.workdir}', '--checkpoint=latest']
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = main.main(['evaluate', *words, '--set=faults.max_share=0.1'])
    self.assertEqual((code, out.getvalue()), (1, ''))
    (path,) = pathlib.Path(self.workdir, 'eval').glob('*-t1-verb.jsonl')
    rollouts = list(jsonl.read(path))
    failed = sum(bool(faulty.way(r.task_id)) for r in rollouts)
    self.assertGreater(failed, 0)
    self.assertRegex(
        err.getvalue(),
        rf'(?m)^rl_tpu: the evaluation of checkpoint {STEPS}: {failed} of 8'
        r' .*more than faults[.]max_share = 0[.]1; by cause: .*$',
    )

  def test_A5_a_rising_share_stops_the_run_and_raising_the_limit_goes_on(self):
    self.assertRegex(
        self.report, r'^update 2: 6 of 8 .* had 62%\. .*/checkpoints/1\.$'
    )
    # What it stopped on could be looked at.
    self.assertEqual(self.stored_then, [1, 2])
    self.assertEqual(self.summary['updates'], STEPS)
    ids = [r.rollout_id for r in sum(self.rollouts, [])]
    self.assertEqual(ids, [f'{number:07d}-0' for number in range(8 * STEPS)])


if __name__ == '__main__':
  absltest.main()
