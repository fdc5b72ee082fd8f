"""K37: lines that a resumed run cuts off, and those that it puts back."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.metrics import lines
from rl_tpu.metrics import writers


def line(step: int, name: str = 'adv/mean') -> dict[str, float]:
  return {'step': step, 'time': 100.0 + step, name: step / 4}


class LinesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    self.path = folder / 'metrics.jsonl'

  def write(self, *texts):
    self.path.write_text(''.join(
        t if isinstance(t, str) else json.dumps(t) + '\n' for t in texts
    ))

  def stored(self):
    return [json.loads(t) for t in self.path.read_text().splitlines()]

  def test_the_tail_is_of_the_last_updates(self):
    found = [line(s) for s in range(1, 21)] + [line(20, 'eval/success')]
    self.assertEqual(
        lines.tail(found), [line(s) for s in range(13, 21)] + found[-1:]
    )
    self.assertEqual(lines.tail([]), [])

  def test_K37_an_undamaged_file_is_cut_back_in_silence(self):
    evaluated = line(3, 'eval/success')
    self.write(line(0), line(1), line(2), line(3), evaluated, line(4))
    with self.assertNoLogs(level='WARNING'):
      found = lines.take_up(
          self.path, 3, [line(2), line(3), evaluated, line(4)]
      )
    self.assertEqual(
        found, [line(0), line(1), line(2), line(3), evaluated]
    )
    self.assertEqual(self.stored(), found)

  def test_K37_lost_lines_come_back_in_their_places_once(self):
    evaluated = line(2, 'eval/success')
    # The line of 3 is damaged, the evaluation is gone, 4 is torn.
    self.write(line(1), line(2), '{"step" 3}\n', '[5]\n', '{"step": 4, "a')
    with self.assertLogs(level='WARNING') as logs:
      found = lines.take_up(
          self.path, 4, [line(2), evaluated, line(3), line(4)]
      )
    self.assertEqual(found, [line(1), line(2), evaluated, line(3), line(4)])
    self.assertEqual(self.stored(), found)
    self.assertIn('2 damaged lines', logs.output[0])
    self.assertIn('had lost 3 lines', logs.output[1])
    self.assertLen(logs.output, 2)

  def test_K37_a_file_that_is_gone_is_begun_with_what_there_is(self):
    with self.assertLogs(level='WARNING') as logs:
      found = lines.take_up(self.path, 9, [line(4), line(6), line(9)])
    self.assertEqual(found, [line(4), line(6), line(9)])
    self.assertIn('no line of updates 1 to 3, 5, 7 to 8', logs.output[-1])

  def test_K37_a_run_that_is_continued_twice_keeps_its_tail(self):
    folder = self.path.parent
    with writers.open_run(folder) as first:
      for step in range(1, 11):
        first.scalars(step, {'adv/mean': step})
      kept = json.loads(json.dumps(first.tail))
    self.assertEqual([l['step'] for l in kept], list(range(3, 11)))
    self.path.unlink()
    with writers.open_run(folder, resume_step=10, kept=kept) as second:
      self.assertEqual(second.tail, kept)
      second.scalars(11, {'adv/mean': 11})
      self.assertEqual([l['step'] for l in second.tail], list(range(4, 12)))
    self.assertEqual([l['step'] for l in self.stored()], list(range(3, 12)))


if __name__ == '__main__':
  absltest.main()
