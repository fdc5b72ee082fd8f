"""L18: dumps come back as they were written, or are refused by name."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rl_tpu.records import dumps

REPORT = {'update': 7, 'network': 'actor'}
ARRAYS = {
    'value': np.float32([[1.0, np.nan], [np.inf, -0.5]]),
    'token': np.int32([[3, 4], [5, 6]]),
    'is_action': np.array([[True, False], [False, True]]),
}


class DumpsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.create_tempdir().full_path
    self.path = dumps.path_of(self.workdir, 7, 'actor', 0)

  def test_its_name_says_where_it_is_from(self):
    relative = self.path.relative_to(self.workdir)
    self.assertEqual(str(relative), 'dumps/000007-actor-0.npz')

  @parameterized.parameters('.npz', '.json')
  def test_what_is_written_is_read_from_either_file(self, ending):
    dumps.write(self.path, REPORT, ARRAYS)
    report, arrays = dumps.read(self.path.with_suffix(ending))
    self.assertEqual(report, REPORT)
    self.assertEqual(set(arrays), set(ARRAYS))
    for name, array in arrays.items():
      self.assertEqual(array.dtype, ARRAYS[name].dtype)
      np.testing.assert_array_equal(array, ARRAYS[name])
    files = sorted(p.name for p in pathlib.Path(self.path).parent.iterdir())
    self.assertEqual(files, ['000007-actor-0.json', '000007-actor-0.npz'])

  def test_the_report_is_plain_json(self):
    with self.assertRaises(ValueError):
      dumps.write(self.path, {'value': float('nan')}, ARRAYS)
    dumps.write(self.path, REPORT, ARRAYS)
    text = self.path.with_suffix('.json').read_text()
    self.assertEqual(json.loads(text, parse_constant=self.fail), REPORT)

  def test_what_is_no_dump_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'npz: there is no such file'):
      dumps.read(self.path)
    dumps.write(self.path, REPORT, ARRAYS)
    whole = self.path.read_bytes()
    self.path.write_bytes(whole[: len(whole) // 2])
    with self.assertRaisesRegex(ValueError, 'actor-0.npz: it is no dump'):
      dumps.read(self.path)
    self.path.write_bytes(whole)
    self.path.with_suffix('.json').write_text('{')
    with self.assertRaisesRegex(ValueError, 'it is no dump'):
      dumps.read(self.path)
    self.path.with_suffix('.json').unlink()
    with self.assertRaisesRegex(ValueError, 'json: there is no such file'):
      dumps.read(self.path)


if __name__ == '__main__':
  absltest.main()
