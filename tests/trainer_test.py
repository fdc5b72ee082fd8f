"""The whole loop on a tiny model: files, figures, resume, determinism."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest

from rl_tpu import trainer
from rl_tpu.assembly import judging
from rl_tpu.cli import main
from rl_tpu.config import loading
from rl_tpu.metrics import tags
from rl_tpu.records import jsonl
from tests import tiny
from tests.chaos import kills


def lines(workdir: str) -> list[dict]:
  text = (pathlib.Path(workdir) / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


class TrainerTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder)
    cls.model = tiny.model_folder(cls.folder)
    # Every update is saved, so that a run can be taken up in its middle.
    cls.config = tiny.experiment(cls.model, steps=4)
    cls.config = dataclasses.replace(
        cls.config,
        checkpoint=dataclasses.replace(cls.config.checkpoint, every=1, keep=9),
        evaluation=dataclasses.replace(cls.config.evaluation, every=2),
    )
    cls.whole = str(cls.folder / 'whole')
    cls.started = []
    cls.summary = trainer.train(
        cls.config, cls.whole, on_start=lambda: cls.started.append(1)
    )

  def test_summary_and_files(self):
    self.assertEqual(self.started, [1])
    self.assertEqual(self.summary['updates'], 4)
    self.assertEqual(self.summary['stopped'], 'steps')
    self.assertEqual(set(self.summary['before']), {1.0, 0.0})
    self.assertEqual(set(self.summary['after']), {1.0, 0.0})
    for name in ('config.json', 'metrics.jsonl', 'tb', 'rollouts', 'eval'):
      self.assertTrue(os.path.exists(os.path.join(self.whole, name)), name)
    self.assertTrue(os.path.isdir(self.summary['checkpoint']))

  def test_K39_the_config_in_force_is_written(self):
    stored = loading.load(os.path.join(self.whole, 'config.json'))
    self.assertEqual(loading.differences(stored, self.config), [])

  def test_every_figure_has_a_name_of_the_table(self):
    names = {name for line in lines(self.whole) for name in line}
    self.assertEqual(tags.unknown(names - {'step', 'time'}), [])

  def test_K37_evaluations_stand_at_the_update_they_follow(self):
    at = [l['step'] for l in lines(self.whole) if 'eval/success' in l]
    self.assertEqual(at, [0, 2, 4])

  def test_A5_every_rollout_is_accounted_for(self):
    for line in lines(self.whole):
      if 'reward/success' not in line:
        continue
      self.assertEqual(line['rollout/started'], 8 * line['step'])
      self.assertEqual(
          line['rollout/started'],
          sum(
              line[f'rollout/{place}']
              for place in ('admitted', 'discarded', 'queued', 'running')
          ),
      )

  def test_O4_sampler_and_trainer_agree_before_the_first_step(self):
    trained = [l for l in lines(self.whole) if 'policy/behaviour_gap_max' in l]
    self.assertLen(trained, 3)  # The first update warms the critic up only.
    for line in trained:
      self.assertLess(line['policy/behaviour_gap_max'], 1e-4)

  def test_C1_the_actor_is_frozen_during_the_warm_up(self):
    shown = [
        l['critic/warm_up'] for l in lines(self.whole) if 'critic/warm_up' in l
    ]
    self.assertEqual(shown, [1.0, 0.0, 0.0, 0.0])
    events = b''.join(
        path.read_bytes() for path in pathlib.Path(self.whole, 'tb').iterdir()
    )
    self.assertIn(b"the actor's parameters did not change (hash ", events)

  def test_O1_C2_batches_are_of_the_version_that_is_trained(self):
    for line in lines(self.whole):
      if 'reward/success' in line:
        self.assertEqual(line['policy/version_gap_max'], 0.0)
        self.assertIn('slice/bias_by_gap/0', line)
        self.assertGreaterEqual(line['rollout/queue_wait_mean'], 0.0)

  def test_steps_after_the_first_compile_nothing_new(self):
    compiled = [
        l['perf/compilations'] for l in lines(self.whole) if l['step'] == 4
        and 'perf/compilations' in l
    ]
    self.assertEqual(compiled, [0])

  def test_the_estimates_of_every_rollout_are_stored(self):
    path = jsonl.estimates_path(self.whole, 2)
    stored = [json.loads(l) for l in path.read_text().splitlines()]
    rollouts = list(jsonl.read(jsonl.rollouts_path(self.whole, 2)))
    self.assertEqual(
        [s['rollout_id'] for s in stored], [r.rollout_id for r in rollouts]
    )
    for line, rollout in zip(stored, rollouts):
      for part, segment in zip(line['segments'], rollout.segments, strict=True):
        mask = np.array(part['policy_mask'], bool)
        np.testing.assert_array_equal(mask, segment.is_action)
        self.assertTrue((np.array(part['advantage'])[~mask] == 0).all())

  def test_K27_O9_a_resumed_run_equals_an_uninterrupted_one(self):
    workdir = str(self.folder / 'resumed')
    begun = []
    first = trainer.train(
        self.config,
        workdir,
        stop=lambda: begun.append(1),
        # While the rollouts of the third update are gathered: its tasks and
        # their count are taken back.
        interrupt=lambda: len(begun) == 3,
    )
    self.assertEqual((first['updates'], first['stopped']), (2, 'signal'))
    self.assertFalse(jsonl.rollouts_path(workdir, 3).exists())
    second = trainer.train(self.config, workdir)
    self.assertEqual(second['updates'], 4)
    for step in (1, 2, 3, 4):
      self.assertEqual(
          tiny.tokens(workdir, step), tiny.tokens(self.whole, step), step
      )
    # Every bit of networks and optimizers, and all that the host counts.
    resumed, whole = (
        kills.state(pathlib.Path(w), 4) for w in (workdir, self.whole)
    )
    self.assertEqual(resumed, whole)
    steps = [l['step'] for l in lines(workdir) if 'reward/success' in l]
    self.assertEqual(steps, [1, 2, 3, 4])
    self.assertEqual(second['before'], self.summary['before'])
    left, right = (
        [l for l in lines(w) if 'reward/success' in l][-1]
        for w in (workdir, self.whole)
    )
    for name in (
        'loss/total', 'loss/value', 'policy/entropy', 'adv/std',
        'rollout/started',
    ):
      self.assertEqual(left[name], right[name], name)

  def test_K25_a_finished_run_says_so_and_does_nothing(self):
    before = len(lines(self.whole))
    again = trainer.train(self.config, self.whole)
    self.assertEqual((again['updates'], again['stopped']), (4, 'steps'))
    trained = [l for l in lines(self.whole)[before:] if 'reward/success' in l]
    self.assertEqual(trained, [])

  def test_the_stored_checkpoint_is_judged_as_at_the_end(self):
    found = judging.evaluate(self.config, self.whole, checkpoint='latest')
    self.assertEqual(found, self.summary['after'])

  def test_inspect_shows_the_last_update(self):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      code = main.main(['inspect', f'--workdir={self.whole}', '--limit=1'])
    self.assertEqual(code, 0)
    self.assertIn('3 sums, 0 lost', out.getvalue())
    self.assertIn('advantage', out.getvalue())

  def test_another_experiment_in_a_used_directory_is_refused(self):
    changed = dataclasses.replace(
        self.config, gae=dataclasses.replace(self.config.gae, gamma=0.9)
    )
    with self.assertRaisesRegex(ValueError, 'gae.gamma'):
      trainer.train(changed, self.whole)
    renamed = dataclasses.replace(self.config, name='another')
    with self.assertRaisesRegex(ValueError, "'another'"):
      trainer.train(renamed, self.whole)


class GroupTest(absltest.TestCase):

  def test_E1_a_group_estimator_trains_without_a_critic(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    config = tiny.experiment(tiny.model_folder(folder), steps=1)
    config = dataclasses.replace(
        config,
        advantage=dataclasses.replace(
            config.advantage, estimator='grpo', norm='none'
        ),
        group=dataclasses.replace(config.group, size=2),
        critic=dataclasses.replace(
            config.critic, warmup_steps=0, holdout_fraction=0.0
        ),
        batching=dataclasses.replace(config.batching, tasks_per_batch=4),
    )
    workdir = str(folder / 'work')
    trainer.train(config, workdir)
    (line,) = [l for l in lines(workdir) if 'reward/success' in l]
    # Two members of each task are comparable: none is left out.
    self.assertEqual(line['rollout/admitted'], 8)
    self.assertEqual(line['rollout/discarded'], 0)
    names = {name for line in lines(workdir) for name in line}
    self.assertEqual(tags.unknown(names - {'step', 'time'}), [])

  def test_E6_E9_D1_D8_gigpo_with_dynamic_sampling(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    config = tiny.experiment(tiny.model_folder(folder), steps=2)
    config = dataclasses.replace(
        config,
        advantage=dataclasses.replace(
            config.advantage, estimator='gigpo', norm='none'
        ),
        group=dataclasses.replace(
            config.group, size=2, dynamic_sampling=True, max_rounds=1
        ),
        reward=dataclasses.replace(config.reward, norm='running'),
        verifier=dataclasses.replace(config.verifier, rescore_share=1.0),
        critic=dataclasses.replace(
            config.critic, warmup_steps=0, holdout_fraction=0.0
        ),
        batching=dataclasses.replace(config.batching, tasks_per_batch=4),
        checkpoint=dataclasses.replace(config.checkpoint, every=1, keep=9),
    )
    workdir = str(folder / 'work')
    limited = dataclasses.replace(config, token_limit=1)
    result = trainer.train(limited, workdir)
    self.assertEqual((result['updates'], result['stopped']), (1, 'token_limit'))
    # What is looked at may change when a run is taken up again.
    traced = dataclasses.replace(config.log, profile_first=2, profile_last=2)
    trainer.train(dataclasses.replace(config, log=traced), workdir)
    traces = pathlib.Path(workdir).glob('profile/plugins/profile/*/*.xplane.pb')
    self.assertLen(list(traces), 1)
    names = {name for line in lines(workdir) for name in line}
    self.assertEqual(tags.unknown(names - {'step', 'time'}), [])
    first, second = [l for l in lines(workdir) if 'group/replaced' in l]
    # A model that knows nothing fails every task alike: all four groups are
    # replaced once, and stay flat.
    self.assertEqual(first['group/replaced'], 4)
    self.assertEqual(first['group/left_flat'], 4)
    self.assertEqual(first['group/extra_rollouts'], 8)
    self.assertGreater(first['group/extra_tokens'], 0)
    # The environment names the state of every turn.
    self.assertEqual(first['group/anchored_turns'], 1.0)
    for line, started in ((first, 16), (second, 32)):
      self.assertEqual(line['rollout/started'], started)
      self.assertEqual(line['rollout/admitted'], started / 2)
      self.assertEqual(line['rollout/discarded'], started / 2)
    # Tasks go on after the extra ones, over a restart.
    drawn = [
        [r.rollout_id for r in jsonl.read(jsonl.rollouts_path(workdir, step))]
        for step in (1, 2)
    ]
    self.assertEqual(drawn[0][0], '0000000-0')
    self.assertEqual(drawn[1][0], '0000008-0')


if __name__ == '__main__':
  absltest.main()
