"""O7: which settings may change when a run is taken up again."""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import taking_up
from rl_tpu.config import loading
from rl_tpu.config import overrides
from tests import tiny


class TakingUpTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())
    self.config = tiny.experiment('model')

  def check(self, *assignments, **how):
    return taking_up.check(
        'runs/a',
        overrides.apply(self.config, assignments),
        folder=self.folder,
        **how,
    )

  def start(self):
    loading.save(self.config, pathlib.Path(self.folder) / 'config.json')

  def test_a_fresh_directory(self):
    self.assertIsNone(self.check())

  @parameterized.parameters(
      'steps=9', 'time_limit_s=5', 'mesh.fsdp=2', 'memory.critic=host',
      'checkpoint.every=3', 'checkpoint.keep=5', 'environment.workers=3',
      'log.transcripts_every=2', 'faults.max_share=0.5', 'resume.max_bias=1',
      'sampler.check_every=1', 'alignment.every=2', 'verifier.timeout_s=5',
  )
  def test_O7_where_and_how_long_is_free(self, assignment):
    self.start()
    self.assertEqual(self.check(assignment), {})

  @parameterized.parameters(
      ('gae.gamma=0.5', 'gae.gamma (before 1.0, now 0.5)'),
      ('seed=3', 'seed (before 0, now 3)'),
      ('sampler.slots=16', 'sampler.slots (before 8, now 16)'),
      ('model.path=other', 'model.path (before "model", now "other")'),
      ('environment.settings={}', 'environment.settings.problems'),
  )
  def test_O7_what_changes_results_is_refused_field_by_field(
      self, change, named
  ):
    self.start()
    with self.assertRaises(ValueError) as caught:
      self.check(change, 'steps=9')
    message = str(caught.exception)
    self.assertStartsWith(message, '--workdir=runs/a: its run was started')
    self.assertIn(f'other settings: {named}', message)
    self.assertIn('--override_config=yes', message)
    self.assertNotIn('steps', message)

  def test_O7_overridden_settings_are_known(self):
    self.start()
    changed = self.check('gae.gamma=0.5', 'steps=9', override=True)
    self.assertEqual(changed, {'gae.gamma': (1.0, 0.5)})

  def test_O7_other_weights_of_the_reference_are_refused_or_known(self):
    compare = taking_up.compare_reference
    for same in (('a', 'a'), (None, 'b'), ('a', None)):
      self.assertEqual(compare('runs/a', 'model', *same), {})
    with self.assertRaisesRegex(
        ValueError, '^--workdir=runs/a: model.path = model .*--override_config'
    ):
      compare('runs/a', 'model', 'a', 'b')
    self.assertEqual(
        compare('runs/a', 'model', 'a', 'b', override=True),
        {'weights of model.path': ('a', 'b')},
    )

  def test_another_experiment_is_refused_even_so(self):
    self.start()
    with self.assertRaisesRegex(
        ValueError, "experiment 'arithmetic_tools_ppo'"
    ):
      self.check('name=other', override=True)


if __name__ == '__main__':
  absltest.main()
