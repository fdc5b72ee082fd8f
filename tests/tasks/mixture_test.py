"""D4, D7: several task sources as one."""

import json
import pathlib

from absl.testing import absltest

from rl_tpu.config import schema
from rl_tpu.tasks import draws
from rl_tpu.tasks import mixture

ARITHMETIC = {
    'target': 'rl_tpu.tasks.arithmetic:ArithmeticTasks',
    'settings': {'count': 5, 'problems': 2},
}


class MixedTasksTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    rows = [{'id': f'row{i}', 'prompt': 'q', 'answer': 'a'} for i in range(3)]
    for split in ('train', 'eval'):
      (folder / split).write_text('\n'.join(map(json.dumps, rows)))
    self.jsonl = {
        'target': 'rl_tpu.tasks.rows:RowTasks',
        'settings': {
            'train_file': str(folder / 'train'),
            'eval_file': str(folder / 'eval'),
            'source': 'rows',
        },
    }
    self.parts = {'reasoning_gym': ARITHMETIC, 'rows': self.jsonl}

  def test_D4_the_parts_one_after_the_other(self):
    made = mixture.MixedTasks(parts=self.parts)
    self.assertLen(made, 8)
    self.assertEqual(
        [made[i].source for i in range(8)],
        ['reasoning_gym'] * 5 + ['rows'] * 3,
    )
    self.assertEqual(made[5].task_id, 'row0')
    self.assertEqual(made[-1], made[7])
    for index in (8, -9):
      with self.assertRaises(IndexError):
        made[index]  # pylint: disable=pointless-statement

  def test_D4_a_mix_draws_by_its_weights(self):
    made = mixture.MixedTasks(parts=self.parts)
    found = draws.TaskDraws(
        made,
        seed=0,
        data=schema.DataConfig(mix={'reasoning_gym': 1.0, 'rows': 3.0}),
    )
    sources = [d.task.source for d in found.take(8)]
    self.assertEqual(sources.count('rows'), 6)

  def test_D4_sources_that_know_their_places_are_not_read(self):
    for part in (ARITHMETIC, self.jsonl):
      made = mixture.loading.construct(
          part['target'], part['settings'], setting='tasks', split='train'
      )
      (found,) = made.indices_by_source().values()
      self.assertEqual(list(found), list(range(len(made))))
      self.assertEqual(list(made.indices_by_source()), [made[0].source])

  def test_D7_each_part_declares_its_own_variants(self):
    made = mixture.MixedTasks(parts=self.parts)
    self.assertIsNone(made.easier(made[5]))
    variants = [made.easier(made[i]) for i in range(5)]
    self.assertNotEmpty([v for v in variants if v is not None])

  def test_D4_a_part_with_several_sources_is_refused(self):
    path = pathlib.Path(self.create_tempdir().full_path) / 'rows'
    path.write_text('\n'.join(
        json.dumps({'prompt': name, 'answer': '1', 'kind': name})
        for name in ('rows', 'sums')
    ))
    several = {
        'target': self.jsonl['target'],
        'settings': {'train_file': str(path), 'keys': {'source': 'kind'}},
    }
    with self.assertRaisesRegex(ValueError, "parts.rows: .*'rows', 'sums'"):
      mixture.MixedTasks(parts={'rows': several})

  def test_misuse_is_refused(self):
    for parts, message in (
        ({}, 'name at least one'),
        ({'other': ARITHMETIC}, "parts.other.*'reasoning_gym'"),
        ({'rows': {'settings': {}}}, 'parts.rows.*target and settings'),
        ({'rows': {**self.jsonl, 'weight': 1}}, 'target and settings'),
        (
            {'rows': {'target': ARITHMETIC['target'], 'settings': {'x': 1}}},
            'parts.rows.settings.x',
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        mixture.MixedTasks(parts=parts)


if __name__ == '__main__':
  absltest.main()
