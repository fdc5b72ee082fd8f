"""A work directory on gs://, against a bucket in memory."""

import importlib.util
import os
import pathlib
from unittest import mock

from absl.testing import absltest

from rl_tpu.checkpointing import mirror as mirror_lib
from rl_tpu.types import stops
from tests import bucket as bucket_lib

_WORKDIR = 'gs://bucket/runs/first'


class MirrorTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.bucket = bucket_lib.install(self)
    self.enter_context(mock.patch.object(
        importlib.util, 'find_spec', lambda name: name == 'gcsfs' or None
    ))

  def write(self, mirror: mirror_lib.Mirror, name: str, text: str) -> None:
    path = pathlib.Path(mirror.folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

  def stored(self) -> dict[str, bytes]:
    return {
        name.removeprefix(f'{_WORKDIR}/'): data
        for name, data in self.bucket.contents().items()
    }

  def test_a_local_directory_is_written_to_itself(self):
    folder = self.create_tempdir().full_path
    mirror = mirror_lib.Mirror(folder)
    self.write(mirror, 'config.json', '{}')
    mirror.push()
    self.assertEqual((mirror.folder, mirror.workdir), (folder, folder))
    self.assertEmpty(self.bucket.written)

  def test_what_changed_is_copied_and_what_is_gone_is_deleted(self):
    mirror = mirror_lib.Mirror(_WORKDIR)
    self.assertEqual(mirror.workdir, _WORKDIR)
    self.assertTrue(os.path.isdir(mirror.folder))
    self.write(mirror, 'config.json', '{}')
    self.write(mirror, 'metrics.jsonl', '1\n')
    self.write(mirror, 'rollouts/000001.jsonl', 'r')
    mirror.push()
    self.assertEqual(
        self.stored(),
        {
            'config.json': b'{}',
            'metrics.jsonl': b'1\n',
            'rollouts/000001.jsonl': b'r',
        },
    )
    self.bucket.written.clear()
    with (pathlib.Path(mirror.folder) / 'metrics.jsonl').open('a') as file:
      file.write('2\n')
    (pathlib.Path(mirror.folder) / 'rollouts/000001.jsonl').unlink()
    mirror.push()
    self.assertEqual(self.bucket.written, [f'{_WORKDIR}/metrics.jsonl'])
    self.assertEqual(
        self.stored(), {'config.json': b'{}', 'metrics.jsonl': b'1\n2\n'}
    )

  def test_a_bucket_that_refuses_is_named(self):
    mirror = mirror_lib.Mirror(_WORKDIR)
    self.write(mirror, 'config.json', '{}')
    with mock.patch.object(
        self.bucket, '_open', side_effect=RuntimeError('403:\n no quota')
    ):
      with self.assertRaises(stops.WriteFailed) as caught:
        mirror.push()
    self.assertEqual(
        str(caught.exception),
        f'{_WORKDIR} could not be written: RuntimeError: 403: no quota.',
    )
    mirror.push()
    self.assertEqual(self.stored(), {'config.json': b'{}'})

  def test_a_run_is_taken_up_on_another_machine(self):
    first = mirror_lib.Mirror(_WORKDIR)
    for name in ('config.json', 'metrics.jsonl', 'tb/events.2', 'tb/events.10',
                 'incidents.jsonl', 'rollouts/000001.jsonl'):
      self.write(first, name, name)
    first.push()
    self.bucket.pipe(f'{_WORKDIR}/checkpoints/1/x', b'c')
    self.bucket.written.clear()
    second = mirror_lib.Mirror(_WORKDIR)
    here = pathlib.Path(second.folder)
    # Neither rollouts nor checkpoints: the one is not read, Orbax reads the
    # other.
    self.assertEqual(
        {
            p.relative_to(here).as_posix(): p.read_text()
            for p in here.rglob('*') if p.is_file()
        },
        {
            name: name
            for name in ('config.json', 'metrics.jsonl', 'tb/events.2',
                         'tb/events.10', 'incidents.jsonl')
        },
    )
    second.push()
    self.assertEmpty(self.bucket.written)
    self.assertIn('rollouts/000001.jsonl', self.stored())
    self.assertIn('checkpoints/1/x', self.stored())

  def test_the_missing_package_is_named(self):
    with mock.patch.object(importlib.util, 'find_spec', lambda name: None):
      with self.assertRaisesRegex(ValueError, r"gs://.*'rl-tpu\[pod\]'"):
        mirror_lib.Mirror(_WORKDIR)


if __name__ == '__main__':
  absltest.main()
