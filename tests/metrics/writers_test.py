"""Event files and metrics.jsonl: resuming and closing (K37, K38)."""

import io
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from PIL import Image
from tensorboardX import record_writer

from rl_tpu.metrics import event_files
from rl_tpu.metrics import tags
from rl_tpu.metrics import writers

READER = """
import sys
from rl_tpu.metrics import event_files
print(event_files.scalars(sys.argv[1]))
"""


class WritersTest(parameterized.TestCase):

  def folder(self) -> pathlib.Path:
    return pathlib.Path(self.create_tempdir().full_path)

  def test_K37_a_resumed_run_has_every_step_once(self):
    folder = self.folder()
    first = writers.open_run(folder)
    for step in range(1, 16):
      first.scalars(step, {'reward/success': 1.0})
      first.text(step, 'sample/best', f'first {step}')
      if step == 10:
        first.scalars(step, {'eval/success': 0.5})
    first.close()  # Crashes after 15; the checkpoint is that of 10.
    with writers.open_run(folder, resume_step=10) as second:
      for step in range(11, 21):
        second.scalars(step, {'reward/success': 2.0})

    expected = [(s, 1.0) for s in range(1, 11)]
    expected += [(s, 2.0) for s in range(11, 21)]
    found = event_files.scalars(folder / 'tb')
    self.assertEqual(found['reward/success'], expected)
    self.assertEqual(found['eval/success'], [(10, 0.5)])
    texts = [
        event.step
        for path in event_files.event_paths(folder / 'tb')
        for _, event in event_files.records(path)
        if any(v.tag.startswith('sample/best') for v in event.summary.value)
    ]
    self.assertEqual(texts, list(range(1, 11)))
    lines = writers.read_jsonl(folder / 'metrics.jsonl')
    points = [
        (line['step'], line['reward/success'])
        for line in lines
        if 'reward/success' in line
    ]
    self.assertEqual(points, expected)
    self.assertEqual([x['step'] for x in lines if 'eval/success' in x], [10])

  def test_K37_a_running_dashboard_is_told_to_forget_later_steps(self):
    folder = self.folder()
    with writers.TensorBoardWriter(folder, resume_step=10):
      pass
    (path,) = event_files.event_paths(folder)
    starts = [
        event.step
        for _, event in event_files.records(path)
        if event.HasField('session_log')
    ]
    self.assertEqual(starts, [11])

  def test_K37_torn_records_are_left_out(self):
    folder = self.folder()
    with writers.open_run(folder) as writer:
      for step in (1, 2, 3):
        writer.scalars(step, {'adv/mean': float(step)})
    (path,) = event_files.event_paths(folder / 'tb')
    path.write_bytes(path.read_bytes()[:-5])
    lines = folder / 'metrics.jsonl'
    lines.write_text(lines.read_text() + '{"step": 4, "adv/me')
    with writers.open_run(folder, resume_step=9) as writer:
      writer.scalars(4, {'adv/mean': 4.0})
    self.assertEqual(
        [s for s, _ in event_files.scalars(folder / 'tb')['adv/mean']],
        [1, 2, 4],
    )
    self.assertEqual(
        [x['step'] for x in writers.read_jsonl(lines)], [1, 2, 3, 4]
    )

  def test_two_writers_of_one_second_do_not_share_a_file(self):
    folder = self.folder()
    for step in (1, 2):
      with writers.TensorBoardWriter(folder) as writer:
        writer.scalars(step, {'adv/mean': 0.0})
    self.assertLen(event_files.scalars(folder)['adv/mean'], 2)

  def test_K38_writers_give_files_and_threads_back(self):
    folder = self.folder()
    with writers.open_run(folder / 'warm') as writer:
      writer.scalars(1, {'adv/mean': 0.0})
    files, threads = _open_files(), threading.active_count()
    for run in range(50):
      try:
        with writers.open_run(folder / str(run)) as writer:
          writer.scalars(1, {'adv/mean': float(run)})
          if run % 5 == 0:
            raise RuntimeError('the run fails')
      except RuntimeError:
        pass
    deadline = time.time() + 5
    while _open_files() > files + 3 and time.time() < deadline:
      time.sleep(0.05)
    self.assertLessEqual(_open_files(), files + 3)
    self.assertLessEqual(threading.active_count(), threads + 3)
    for run in range(50):
      found = event_files.scalars(folder / str(run) / 'tb')
      self.assertEqual(found['adv/mean'], [(1, float(run))])

  def test_K38_all_sinks_are_closed_when_one_fails_to(self):
    closed = []

    class Sink(writers.JsonlWriter):

      def close(self):
        super().close()
        closed.append(self)
        raise OSError('disk full')

    folder = self.folder()
    sinks = [Sink(folder / 'a'), Sink(folder / 'b')]
    with self.assertRaises(OSError):
      writers.Writers(sinks).close()
    self.assertLen(closed, 2)

  def test_K38_a_point_is_readable_within_the_flush_time(self):
    folder = self.folder()
    board = writers.TensorBoardWriter(folder / 'tb', flush_s=1)
    lines = writers.JsonlWriter(folder / 'metrics.jsonl')
    with writers.Writers((board, lines)) as writer:
      writer.scalars(1, {'adv/mean': 3.0})
      time.sleep(1.5)
      found = subprocess.run(
          [sys.executable, '-c', READER, str(folder / 'tb')],
          capture_output=True,
          text=True,
          check=True,
      ).stdout
      self.assertIn("'adv/mean': [(1, 3.0)]", found)
      self.assertEqual(
          writers.read_jsonl(folder / 'metrics.jsonl')[0]['adv/mean'], 3.0
      )

  @parameterized.parameters(math.nan, math.inf, -math.inf)
  def test_L18_figures_that_are_not_finite_are_borne_in_silence(self, value):
    folder = self.folder()
    with self.assertNoLogs(level='WARNING'):
      with writers.open_run(folder) as writer:
        writer.scalars(1, {'adv/mean': value, 'adv/std': 0.5})
        writer.scalars(2, {'adv/mean': 0.25})
    first, second = writers.read_jsonl(folder / 'metrics.jsonl')
    self.assertEqual((first['adv/mean'], first['adv/std']), (None, 0.5))
    self.assertEqual(second['adv/mean'], 0.25)
    found = event_files.scalars(folder / 'tb')
    np.testing.assert_equal(found['adv/mean'], [(1, value), (2, 0.25)])
    self.assertEqual(found['adv/std'], [(1, 0.5)])

  def test_undefined_figures_are_null_and_no_point(self):
    folder = self.folder()
    with writers.open_run(folder) as writer:
      writer.scalars(
          1,
          {
              'critic/explained_variance': None,
              'adv/mean': math.nan,
              'rollout/admitted': np.int64(3),
              'adv/std': np.float32(0.5),
          },
      )
    text = (folder / 'metrics.jsonl').read_text()
    line = json.loads(text, parse_constant=self.fail)
    self.assertIsNone(line['critic/explained_variance'])
    self.assertIsNone(line['adv/mean'])
    self.assertEqual(line['rollout/admitted'], 3)
    found = event_files.scalars(folder / 'tb')
    self.assertNotIn('critic/explained_variance', found)
    self.assertEqual(found['adv/std'], [(1, 0.5)])

  def test_histogram_takes_finite_numbers(self):
    folder = self.folder()
    with writers.open_run(folder) as writer:
      writer.histogram(1, 'adv/histogram', np.array([1.0, np.nan, 2.0]))
      writer.histogram(2, 'adv/histogram', np.array([np.nan]))
    (path,) = event_files.event_paths(folder / 'tb')
    counts = [
        value.histo.num
        for _, event in event_files.records(path)
        for value in event.summary.value
        if value.HasField('histo')
    ]
    self.assertEqual(counts, [2.0])

  def test_C5_pictures_keep_every_pixel(self):
    folder = self.folder()
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    with writers.open_run(folder) as writer:
      writer.image(7, 'critic/calibration', pixels)
    (path,) = event_files.event_paths(folder / 'tb')
    ((step, image),) = [
        (event.step, value.image)
        for _, event in event_files.records(path)
        for value in event.summary.value
        if value.HasField('image')
    ]
    self.assertEqual((step, image.height, image.width), (7, 4, 6))
    png = Image.open(io.BytesIO(image.encoded_image_string))
    np.testing.assert_array_equal(np.asarray(png.convert('RGB')), pixels)
    self.assertEqual((folder / 'metrics.jsonl').read_text(), '')

  def test_dashboard_opens_with_the_health_layout(self):
    folder = self.folder()
    with writers.TensorBoardWriter(folder):
      pass
    (path,) = event_files.event_paths(folder)
    layouts = [
        value.tensor.string_val[0]
        for _, event in event_files.records(path)
        for value in event.summary.value
        if value.tag == 'custom_scalars__config__'
    ]
    self.assertLen(layouts, 1)
    self.assertIn(b'RL health', layouts[0])
    for chart in tags.HEALTH_LAYOUT['RL health']:
      self.assertIn(chart.encode(), layouts[0])


def _open_files() -> int:
  return len(os.listdir('/proc/self/fd'))


  def test_a_full_disk_is_told_and_nobody_waits_for_the_librarys_thread(self):
    folder, threads = self.folder(), threading.active_count()
    with mock.patch.object(
        record_writer, 'open_file', lambda _: open('/dev/full', 'wb')
    ):
      board = writers.TensorBoardWriter(folder)
      # Many times what the queue holds.
      for _ in range(100):
        board.text(1, 'sample/best', 'a' * 1000)
      with self.assertRaisesRegex(OSError, 'No space left'):
        board.close()
      with self.assertRaisesRegex(OSError, 'No space left'):
        board.scalars(2, {'adv/mean': 0.0})
    self.assertEqual(threading.active_count(), threads)

  def test_a_full_disk_is_told_by_the_lines(self):
    path = self.folder() / 'metrics.jsonl'
    path.symlink_to('/dev/full')
    lines = writers.JsonlWriter(path)
    with self.assertRaisesRegex(OSError, 'No space left'):
      lines.scalars(1, {'adv/mean': 0.0})
    with self.assertRaisesRegex(OSError, 'No space left'):
      lines.close()


if __name__ == '__main__':
  absltest.main()
