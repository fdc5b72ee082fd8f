"""Tag names: one table, and no figure written outside of it."""

import ast
import pathlib
import re

from absl.testing import absltest

from rl_tpu.metrics import tags

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / 'rl_tpu'
EXAMPLES = [re.sub(r'\{\w+\}', 'failure', tag) for tag in tags.TAGS]
EXAMPLES += [
    'critic/holdout/explained_variance_scored',
    'rollout/segments_mean',
    'rollout/turns_mean',
]


def written_tags(source: str) -> set[str]:
  """Whole texts of a module that look like tags."""
  tree = ast.parse(source)
  parts = {
      id(part)
      for node in ast.walk(tree)
      if isinstance(node, ast.JoinedStr)
      for part in node.values
  }
  found = {
      node.value
      for node in ast.walk(tree)
      if isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and id(node) not in parts
  }
  groups = '|'.join(tags.GROUPS)
  return {t for t in found if re.fullmatch(rf'({groups})/[\w/.]*\w', t)}


class TagsTest(absltest.TestCase):

  def test_unknown_names_are_found(self):
    self.assertEqual(
        tags.unknown([
            'reward/success',
            'reward/component/tool_valid',
            'adv/segment/3',
            'rollout/tokens_p95',
            'eval/t0.5/low',
        ]),
        [],
    )
    self.assertEqual(
        tags.unknown(['reward/succes', 'x', 'adv/segment/']),
        ['adv/segment/', 'reward/succes', 'x'],
    )

  def test_every_tag_is_in_a_group_and_described(self):
    for pattern, sentence in tags.TAGS.items():
      self.assertIn(pattern.split('/')[0], tags.GROUPS)
      self.assertNotEmpty(sentence)
    self.assertEqual(
        tags.described('adv/segment/2'), tags.TAGS['adv/segment/{index}']
    )
    self.assertIsNone(tags.described('nothing'))

  def test_layout_names_existing_tags(self):
    for chart, (kind, names) in tags.HEALTH_LAYOUT['RL health'].items():
      if kind == 'Margin':
        self.assertLen(names, 3, chart)
        self.assertEqual(tags.unknown(names), [], chart)
        continue
      for name in names:
        # TensorBoard takes these as patterns of a tag's beginning.
        found = [tag for tag in EXAMPLES if re.match(name, tag)]
        self.assertNotEmpty(found, f'{chart}: {name}')
        self.assertEqual(tags.unknown(found), [], chart)
        if not set(name[:-1]) & set('.+?('):
          self.assertEqual(found, [name[:-1]], chart)

  def test_the_package_writes_no_tag_outside_the_table(self):
    found = {}
    for path in PACKAGE.rglob('*.py'):
      names = tags.unknown(written_tags(path.read_text('utf-8')))
      # A family's beginning, to which the caller appends the figure.
      names = [n for n in names if not any(t.startswith(n) for t in tags.TAGS)]
      if names:
        found[path.relative_to(PACKAGE).as_posix()] = names
    self.assertEqual(found, {})

  def test_the_search_for_written_tags_finds_them(self):
    source = "a = {'reward/new': 1, f'adv/{x}/y': 2, 'no tag': 3, 'tb/x': 4}"
    self.assertEqual(written_tags(source), {'reward/new'})


if __name__ == '__main__':
  absltest.main()
