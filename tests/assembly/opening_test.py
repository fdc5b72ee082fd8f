"""O4: a run opens only where sampler and trainer agree, also after a resume."""

import json
import os
import pathlib
import pickle
import shutil
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest

from rl_tpu.assembly import gates
from rl_tpu.assembly import opening
from rl_tpu.config import overrides
from rl_tpu.metrics import tags
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.sharding import hosts as hosts_lib
from rl_tpu.types import stops
from tests import tiny


def aligned(workdir: str) -> list[dict]:
  """Lines of the log with figures of the check."""
  text = (pathlib.Path(workdir) / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  return [l for l in lines if 'policy/alignment_max_abs' in l]


class OpeningTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder)
    cls.config = tiny.experiment(tiny.model_folder(cls.folder))

  def workdir(self, name: str) -> str:
    return str(self.folder / name)

  def test_O4_checked_at_the_start_and_after_a_resume(self):
    workdir = self.workdir('resumed')
    with opening.open_run(self.config, workdir) as run:
      (first,) = aligned(workdir)
      self.assertEqual(run.training_s(), 0.0)
      run.update_index, run.version = 3, 3
      run.save()
    with opening.open_run(self.config, workdir) as run:
      self.assertEqual(run.update_index, 3)
      # O8: what is left is the critic, on the next batch's own rollouts.
      self.assertEqual(run.gates.gate, gates.Gate.ALIGNED)
      with self.assertRaisesRegex(RuntimeError, 'ALIGNED .O8'):
        run.gates.require_open()
    both = aligned(workdir)
    self.assertEqual([line['step'] for line in both], [0, 3])
    for line in both:
      self.assertLess(line['policy/alignment_max_abs'], 1e-4)
      self.assertLess(line['policy/alignment_mean_abs'], 1e-5)
      # The control that has to fail is far over the limit.
      self.assertGreater(line['policy/alignment_control/temperature'], 1e-3)
    self.assertEqual(tags.unknown(set(first) - {'step', 'time'}), [])

  def test_O4_disagreement_closes_the_run_before_any_update(self):
    workdir = self.workdir('closed')
    real = sampler_lib.JetStreamSampler.update_weights

    def lose(self, version, params, mode):
      real(self, version, jax.tree.map(lambda x: 0.9 * x, params), mode)

    with mock.patch.object(
        sampler_lib.JetStreamSampler, 'update_weights', lose
    ):
      with self.assertRaises(ValueError) as caught:
        with opening.open_run(self.config, workdir):
          self.fail('the run was opened')
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    self.assertIn('alignment.max_abs=0.0001', message)
    self.assertFalse(os.path.exists(workdir))

  def test_O4_weights_that_were_published_wrong_stop_the_run(self):
    config = overrides.apply(self.config, ['alignment.every=2'])
    with opening.open_run(config, self.workdir('published')) as run:
      real = run.sampler.update_weights

      def lose(version, params, mode):
        real(version, jax.tree.map(lambda x: 0.9 * x, params), mode)

      with mock.patch.object(run.sampler, 'update_weights', lose):
        run.update_index = 1
        run.publish()  # Not looked at.
        run.update_index = 2
        with self.assertRaises(stops.RunStopped) as caught:
          run.publish()
    message = str(caught.exception)
    self.assertStartsWith(message, 'update 2: ')
    self.assertIn('alignment.max_abs=0.0001', message)

  def test_O4_off_where_that_is_asked_for(self):
    workdir = self.workdir('off')
    config = overrides.apply(self.config, ['alignment.enabled=false'])
    with opening.open_run(config, workdir):
      self.assertEqual(aligned(workdir), [])

  def test_O7_warm_up_alarms_and_counts_of_faults_are_taken_up(self):
    workdir = self.workdir('state')
    with opening.open_run(self.config, workdir) as run:
      run.warm_up.over, run.warm_up.actor = True, 'abc'
      state = {**run.watch.state(), 'value_loss': [0.5, 0.25]}
      run.watch.restore(state)
      run.bearing.skipped, run.serving.restarts = 2, 3
      run.save()
    with opening.open_run(self.config, workdir) as run:
      self.assertEqual(run.warm_up.state(), {'over': True, 'actor': 'abc'})
      self.assertEqual(run.watch.state()['value_loss'], [0.5, 0.25])
      self.assertEqual((run.bearing.skipped, run.serving.restarts), (2, 3))


  def test_O7_settings_and_lines_that_were_lost_come_from_the_checkpoint(self):
    workdir = self.workdir('lost')
    with opening.open_run(self.config, workdir) as run:
      run.update_index = 1
      run.writer.scalars(1, {'adv/mean': 0.5})
      run.save()
    before = pathlib.Path(workdir, 'metrics.jsonl').read_text().splitlines()
    for name in ('config.json', 'metrics.jsonl'):
      os.unlink(os.path.join(workdir, name))
    changed = overrides.apply(self.config, ['gae.gamma=0.5'])
    with self.assertRaisesRegex(ValueError, 'gae.gamma .before 1.0, now 0.5'):
      with opening.open_run(changed, workdir):
        self.fail('the run was opened')
    self.assertFalse(os.path.exists(os.path.join(workdir, 'config.json')))
    with opening.open_run(self.config, workdir):
      pass
    after = pathlib.Path(workdir, 'metrics.jsonl').read_text().splitlines()
    self.assertLen(before, 2)
    self.assertEqual(after[:2], before)
    self.assertLen(after, 3)  # And the alignment after the resume.

  def test_O7_a_model_folder_with_other_weights_is_noticed(self):
    workdir = self.workdir('reference')
    folder = self.folder / 'changing'
    config = overrides.apply(
        tiny.experiment(tiny.model_folder(folder)),
        ['kl.in=loss', 'kl.coef=0.1', 'alignment.enabled=false'],
    )
    with opening.open_run(config, workdir) as run:
      run.update_index = 1
      run.save()
    tiny.model_folder(folder, seed=1)
    with self.assertRaisesRegex(
        ValueError, 'model.path = .*changing/model does not hold the weights'
    ):
      with opening.open_run(config, workdir):
        self.fail('the run was opened')

  def test_O7_a_part_in_other_shapes_begins_anew_where_that_is_allowed(self):
    workdir = self.workdir('partial')
    with opening.open_run(self.config, workdir) as run:
      changed = jax.tree.map(lambda x: x + 1, run.state.parts)
      run.state = run.state.with_parts(changed)
      run.update_index, run.version = 3, 3
      run.save()
    bins = overrides.apply(self.config, ['critic.head=hl_gauss'])
    how = {'override_config': True}
    with self.assertRaisesRegex(
        ValueError, 'lacks critic, critic_optimizer, .*--allow_partial=critic,'
    ):
      with opening.open_run(bins, workdir, **how):
        self.fail('the run was opened')
    how['allow_partial'] = ['critic,critic_optimizer', 'ledger']
    with opening.open_run(bins, workdir, **how) as run:
      found = run.state.parts
      self.assertEqual((run.update_index, run.version), (3, 3))
    jax.tree.map(
        np.testing.assert_array_equal, found['actor'], changed['actor']
    )
    kernel = found['critic']['value_head']['kernel']
    self.assertEqual(kernel.shape, (16, bins.critic.bins))
    self.assertEqual(
        max(float(abs(x).max()) for x in jax.tree.leaves(
            found['critic_optimizer']
        )), 0.0,
    )
    text = pathlib.Path(workdir, 'incidents.jsonl').read_text()
    (line,) = [
        l for l in map(json.loads, text.splitlines()) if l['kind'] != 'settings'
    ]
    # The ledger was there, and was read.
    self.assertEqual(
        line,
        {
            'update': 3,
            'kind': 'begun_anew',
            'parts': ['critic', 'critic_optimizer'],
        },
    )

  def test_O7_processes_that_allow_other_parts_are_refused(self):
    other = pickle.dumps((self.config, ('critic', 'ledger')))
    hosts = hosts_lib.Hosts(0, 2, lambda data: [data, other])
    opening._check_alike(hosts, self.config, ('ledger', 'critic'))
    with self.assertRaisesRegex(
        ValueError, 'process 1 .* different settings: --allow_partial;'
    ):
      opening._check_alike(hosts, self.config, ('ledger',))


if __name__ == '__main__':
  absltest.main()
