"""Workers are given few variables, and none of the trainer's secrets."""

import os
import pathlib
import sys
from unittest import mock

from absl.testing import absltest

from rl_tpu.isolation import errors
from rl_tpu.isolation import pool
from rl_tpu.isolation import variables
from tests.isolation import worlds

_SECRETS = {'A_TOKEN': 'hush-1', 'A_WANTED': 'told'}


class VariablesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.dict(os.environ, _SECRETS))
    self.module = worlds.install(self)

  def test_secrets_stay_here_and_named_variables_go(self):
    with pool.CallPool(1, pass_variables=('A_WANTED',)) as made:
      call = made.submit(f'{self.module}:variables', timeout_s=10)
      there = call.result()
    self.assertNotIn('hush-1', str(there))
    self.assertEqual(there['A_WANTED'], 'told')
    self.assertEqual(there['PATH'], os.environ['PATH'])
    self.assertContainsSubset(
        set(there),
        {
            'PATH', 'HOME', 'LANG', 'TMPDIR', 'PYTHONPATH', 'A_WANTED',
            'OMP_NUM_THREADS', 'JAX_PLATFORMS', 'LC_CTYPE',
        },
    )

  def test_a_death_at_the_start_names_what_was_left_out(self):
    path = pathlib.Path(sys.path[0]) / 'needs_token.py'
    for body in ('os.environ["A_TOKEN"]', 'os._exit(7)'):
      path.write_text(f'import os\n{body}\n')
      with pool.CallPool(1, preload=('needs_token',)) as made:
        with self.assertRaises(errors.WorkerCrashed) as caught:
          made.submit(f'{self.module}:pid', timeout_s=10).result()
      self.assertIn('A_TOKEN', str(caught.exception))
      self.assertIn('isolation.pass_variables', str(caught.exception))
      self.assertNotIn('hush-1', str(caught.exception))

  def test_names_that_cannot_be_passed_are_refused(self):
    variables.check(('A_TOKEN',))
    with self.assertRaisesRegex(ValueError, "'A-B': this is no name"):
      variables.check(('A-B',))
    with self.assertRaisesRegex(ValueError, "'NOT_THERE': it is not set"):
      variables.check(('NOT_THERE',))


if __name__ == '__main__':
  absltest.main()
