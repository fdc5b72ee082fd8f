"""`inspect --dump`: what was not finite, and where (L18)."""

import contextlib
import io

from absl.testing import absltest
import numpy as np

from rl_tpu.cli import main
from rl_tpu.records import dumps

REPORT = {
    'update': 7,
    'network': 'critic',
    'minibatch': 1,
    'in_step': ['loss', 'gradient of every parameter'],
    'tensors': [{
        'name': 'value',
        'count': 2,
        'places': [{
            'task_id': 'task [a]', 'rollout_id': 'r5', 'segment': 2,
            'position': 3, 'value': 'nan',
        }],
    }],
    'rollouts': [
        {'task_id': 'task [a]', 'rollout_id': 'r5', 'segments': [0, 1, 2]}
    ],
}
# Two segments in a row, and padding; the second has the bad value.
ARRAYS = {
    'token': np.int32([[11, 12, 13, 21, 22, 23, 24, 0]]),
    'position': np.int32([[0, 1, 2, 0, 1, 2, 3, 0]]),
    'segment': np.int32([[0, 0, 0, 1, 1, 1, 1, -1]]),
    'rollout': np.int32([[0, 0, 0, 0, 0, 0, 0, -1]]),
    'is_action': np.array([[0, 1, 1, 0, 1, 1, 1, 0]], bool),
    'value': np.float32([[0, 0.125, 0.25, 0, 0.5, 0.75, np.nan, np.nan]]),
    'reward': np.float32([[0, 0, 0, 0, 0, 0, 0.0625, 0]]),
}


class ShowingDumpsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    workdir = self.create_tempdir().full_path
    self.path = dumps.path_of(workdir, 7, 'critic', 1)

  def command(self) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = main.main(['inspect', f'--dump={self.path}'])
    return code, out.getvalue(), err.getvalue()

  def test_L18_the_tensor_its_place_and_what_is_around_it(self):
    dumps.write(self.path, REPORT, ARRAYS)
    code, text, _ = self.command()
    self.assertEqual(code, 0)
    self.assertIn('update 7: the step of the critic on minibatch 1', text)
    self.assertIn('loss, gradient of every parameter', text)
    lines = text.splitlines()
    place = next(line for line in lines if 'nan' in line and 'r5' in line)
    for part in ('value', '2', 'task [a]', 'r5', '3', 'nan'):
      self.assertIn(part, place)
    # Positions 0 to 3 of the second segment, and nothing of the first.
    (tokens,) = [line.split() for line in lines if ' token ' in line]
    shown = [word for word in tokens if word.isdigit()]
    self.assertEqual(shown, ['21', '22', '23', '24'])
    (values,) = [line for line in lines if '0.75' in line]
    self.assertIn('nan', values)
    self.assertNotIn('0.125', text)
    self.assertIn('0.0625', text)
    self.assertIn('0 1 2', text)

  def test_L18_a_step_that_alone_is_not_finite(self):
    dumps.write(self.path, REPORT | {'tensors': []}, ARRAYS)
    code, text, _ = self.command()
    self.assertEqual(code, 0)
    self.assertIn('all that went in is finite', text)

  def test_what_is_no_dump_is_one_line(self):
    for report in (None, {}, {**REPORT, 'tensors': [{}]}):
      if report is not None:
        dumps.write(self.path, report, ARRAYS)
      code, _, err = self.command()
      self.assertEqual(code, 2)
      self.assertLen(err.splitlines(), 1)
      self.assertIn('000007-critic-1', err)


if __name__ == '__main__':
  absltest.main()
