"""A5: too many infrastructure failures stop a run, with a report."""

import dataclasses
import errno
import json
import pathlib
import types
from unittest import mock

from absl.testing import absltest

from rl_tpu.assembly import bearing
from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.metrics import tags
from rl_tpu.records import jsonl
from rl_tpu.rollout import admission
from rl_tpu.rollout import ledger
from rl_tpu.sharding import hosts
from rl_tpu.types import stops
from rl_tpu.types import termination as term
from tests import group_cases


class _Writer:

  def __init__(self):
    self.values = {}

  def scalars(self, step, values):
    self.values[step] = dict(values)


class _Kept:
  """A part of a run with a state, which a stop takes back."""

  def __init__(self, state):
    self.now = state

  def state(self):
    return self.now

  def restore(self, state):
    self.now = state


def _run(**changes):
  """What `bearing` reads of a run; `saved` gets what would be saved."""
  made = types.SimpleNamespace(
      world=types.SimpleNamespace(hosts=hosts.ALONE),
      mirror=types.SimpleNamespace(
          workdir='/runs/a', push=lambda: made.pushed.append(1)
      ),
      checkpoints=types.SimpleNamespace(
          folder='/runs/a/checkpoints', step=lambda which: 5, wait=lambda: None
      ),
      gathering=types.SimpleNamespace(
          draws=_Kept('tasks before'), noise=_Kept('noise before')
      ),
      ledger=ledger.Ledger(started=48, admitted=48),
      bearing=bearing.Bearing(),
      saved=[],
      pushed=[],
      **changes,
  )
  made.save = lambda: made.saved.append(
      (made.update_index, made.gathering.draws.now, made.ledger.started)
  )
  return made


class BearingTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.create_tempdir().full_path
    self.run = _run(
        config=overrides.apply(
            schema.ExperimentConfig('test'), ['faults.max_share=0.25']
        ),
        workdir=self.workdir,
        update_index=7,
        writer=_Writer(),
    )

  def rollouts(self, *causes):
    """Eight rollouts; the first ones have failed."""
    made = [
        group_cases.member(f'r{i}', [group_cases.Turn(2)], 1.0)
        for i in range(8)
    ]
    for i, cause in enumerate(causes):
      made[i] = dataclasses.replace(
          made[i],
          termination=term.Termination.INFRA_FAILURE,
          terminal_reward=None,
          solved=None,
          fault_cause=term.FaultCause(cause),
          fault_detail=f'environment: {cause}\n  in line 3',
      )
    return made

  def check(self, *causes):
    rollouts = self.rollouts(*causes)
    admitted = admission.admit(
        rollouts,
        termination=term.TerminationRules(),
        data=schema.DataConfig(),
        row_length=64,
    )
    with bearing.saves(self.run):
      bearing.check_batch(self.run, rollouts, admitted)

  def test_A5_a_share_at_the_limit_is_borne(self):
    self.check('timeout', 'network')  # 2 of 8 = 0.25.
    self.check()
    self.assertEqual(list(self.run.bearing.shares), [0.25, 0.0])
    self.assertFalse(jsonl.steps(self.workdir))

  def test_A5_a_share_above_it_stops_the_run_with_a_report(self):
    self.check('timeout')
    with self.assertRaises(stops.RunStopped) as caught:
      self.check('timeout', 'network', 'timeout')
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    for part in (
        'update 7: 3 of 8 rollouts (38%)',
        'faults.max_share = 0.25',
        'timeout 2, network 1',
        'r0: environment: timeout in line 3',
        'The updates before had 12%.',
        'goes on from the checkpoint /runs/a/checkpoints/7.',
    ):
      self.assertIn(part, message)
    # What it stopped on is there to be looked at.
    stored = list(jsonl.read(jsonl.rollouts_path(self.workdir, 7)))
    self.assertLen(stored, 8)
    values = self.run.writer.values[7]
    self.assertEqual(values['rollout/fault/timeout'], 2.0)
    self.assertEqual(tags.unknown(values), [])
    path = pathlib.Path(self.workdir, 'incidents.jsonl')
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    self.assertEqual([l['rollout_id'] for l in lines], ['r0', 'r1', 'r2'])
    causes = [line['cause'] for line in lines]
    self.assertEqual(causes, ['timeout', 'network', 'timeout'])

  def test_A5_the_update_that_is_stopped_in_is_taken_back_and_the_rest_saved(
      self,
  ):
    bearing.begin(self.run)
    self.run.gathering.draws.now = 'tasks after'
    self.run.gathering.noise.now = 'noise after'
    self.run.ledger.start(8)
    with self.assertRaisesRegex(stops.RunStopped, 'checkpoints/6[.]$'):
      self.check(*['memory'] * 8)
    self.assertEqual(self.run.saved, [(6, 'tasks before', 48)])
    self.assertEqual(self.run.gathering.noise.now, 'noise before')

  def test_A5_a_stop_inside_another_is_reported_and_saved_once(self):
    bearing.begin(self.run)
    with self.assertRaisesRegex(stops.RunStopped, '^it failed. The same'):
      with bearing.saves(self.run), bearing.saves(self.run):
        raise stops.RunStopped('it failed.')
    self.assertEqual(self.run.saved, [(6, 'tasks before', 48)])

  def test_other_errors_save_nothing(self):
    with self.assertRaisesRegex(KeyError, 'lost'):
      with bearing.saves(self.run):
        raise KeyError('lost')
    self.assertEmpty(self.run.saved)

  def test_A5_an_evaluation_is_stopped_on_and_what_was_trained_is_kept(self):
    how = {
        'what': 'the evaluation after update 7',
        'step': 7,
        'faults': self.run.config.faults,
        'workdir': self.workdir,
    }
    bearing.check_evaluation(self.rollouts('sampler'), **how)
    with self.assertRaisesRegex(
        stops.RunStopped, 'the evaluation after update 7: 4 of 8'
    ):
      with bearing.saves(self.run):
        bearing.check_evaluation(self.rollouts(*['sampler'] * 4), **how)
    self.assertEqual(self.run.saved, [(7, 'tasks before', 48)])

  def test_A5_before_the_first_update_there_is_nothing_to_keep(self):
    self.run.update_index = 1
    bearing.begin(self.run)
    with self.assertRaisesRegex(stops.RunStopped, 'Nothing has been trained'):
      self.check(*['sampler'] * 4)
    self.assertEmpty(self.run.saved)

  def test_O6_where_nothing_can_be_saved_the_last_checkpoint_is_named(self):
    for step, message in (
        (5, '^it failed. .* checkpoint /runs/a/checkpoints/5[.]$'),
        (None, '^it failed. No checkpoint was saved yet'),
    ):
      self.run.checkpoints.step = lambda which, step=step: step
      with self.assertRaisesRegex(stops.RunStopped, message):
        with bearing.names_checkpoint(self.run):
          raise stops.RunStopped('it failed.')
    self.assertEmpty(self.run.saved)


  def test_O6_a_hang_is_written_down_and_names_the_last_checkpoint(self):
    self.run.config = overrides.apply(
        self.run.config, ['faults.device_wall_s=90']
    )
    text = bearing.hang_report(self.run, 'the update')
    self.assertRegex(text, '^update 7: the update .*device_wall_s = 90 s, .*')
    self.assertRegex(text, 'checkpoint /runs/a/checkpoints/5[.]$')
    path = pathlib.Path(self.workdir, 'incidents.jsonl')
    self.assertEqual(
        json.loads(path.read_text()),
        {'update': 7, 'kind': 'hang', 'what': 'the update', 'limit_s': 90.0},
    )
    self.assertEqual(self.run.pushed, [1])
    self.run.checkpoints.step = lambda which: None
    self.assertRegex(
        bearing.hang_report(self.run, 'the update'), 'No checkpoint was saved'
    )


  def test_a_failed_write_names_the_last_checkpoint(self):
    for error in (
        OSError(errno.ENOSPC, 'No space left on device', '/runs/a/m.jsonl'),
        stops.WriteFailed('checkpoint 7 could not be saved.'),
    ):
      with self.assertRaises(stops.RunStopped) as caught:
        with bearing.full_disk([self.run]):
          raise error
      message = str(caught.exception)
      self.assertRegex(
          message, '^(/runs/a/m.jsonl: No space|checkpoint 7 could)'
      )
      self.assertEndsWith(message, ' the checkpoint /runs/a/checkpoints/5.')

  def test_a_failed_write_before_there_is_a_run(self):
    with self.assertRaisesRegex(stops.RunStopped, '^a file of the run: full.$'):
      with bearing.full_disk([]):
        raise OSError(errno.EDQUOT, 'full')

  def test_other_errors_are_no_failed_write(self):
    with self.assertRaises(FileNotFoundError):
      with bearing.full_disk([self.run]):
        raise FileNotFoundError(errno.ENOENT, 'no such file')

  def test_a_stop_whose_save_fails_says_both(self):
    self.run.save = mock.Mock(side_effect=stops.WriteFailed('It is full.'))
    with self.assertRaisesRegex(stops.WriteFailed, '^it failed. It is full.$'):
      with bearing.saves(self.run), bearing.saves(self.run):
        raise stops.RunStopped('it failed.')
    self.assertEqual(self.run.save.call_count, 1)


class SkippedTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run = _run(
        config=overrides.apply(
            schema.ExperimentConfig('test'), ['faults.max_skipped=3']
        ),
        update_index=9,
    )

  def test_L18_too_many_updates_in_a_row_stop_the_run(self):
    for dumped in (['a'], ['a', 'b'], [], ['a'], ['a']):
      bearing.check_skipped(self.run, dumped)
    self.assertEmpty(self.run.saved)
    with self.assertRaises(stops.RunStopped) as caught:
      with bearing.saves(self.run):
        bearing.check_skipped(self.run, ['dumps/000009-actor-0.npz'])
    message = str(caught.exception)
    for part in (
        'update 9: 3 updates in a row',
        'faults.max_skipped',
        'inspect --dump=/runs/a/dumps/000009-actor-0.npz',
        '/runs/a/checkpoints/9',
    ):
      self.assertIn(part, message)

  def test_L18_O7_a_resumed_run_goes_on_counting(self):
    bearing.check_skipped(self.run, ['a'])
    bearing.check_skipped(self.run, ['a'])
    self.run.bearing.shares.append(0.125)
    state = json.loads(json.dumps(self.run.bearing.state()))
    self.run.bearing = bearing.Bearing()
    self.run.bearing.restore(state)
    self.assertEqual(list(self.run.bearing.shares), [0.125])
    with self.assertRaisesRegex(stops.RunStopped, '3 updates in a row'):
      bearing.check_skipped(self.run, ['a'])
    # Stopped there and started again without a cure, it stops at the next one.
    with self.assertRaisesRegex(stops.RunStopped, '4 updates in a row'):
      bearing.check_skipped(self.run, ['a'])


if __name__ == '__main__':
  absltest.main()
