"""O7: the names of a checkpoint's parts, and which may be missing."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.checkpointing import contents


class ContentsTest(parameterized.TestCase):

  @parameterized.parameters(
      ([], ()),
      (['critic'], ('critic',)),
      (['critic,critic_optimizer', 'ledger'],
       ('critic', 'critic_optimizer', 'ledger')),
      (['cursor', 'cursor, ledger'], ('cursor', 'ledger')),
  )
  def test_O7_words_name_parts(self, words, parts):
    self.assertEqual(contents.named(words), parts)

  @parameterized.parameters('critics', 'update', 'policy_version', '')
  def test_O7_what_is_no_part_or_is_needed_is_refused(self, name):
    with self.assertRaises(ValueError) as caught:
      contents.named(['cursor', name])
    message = str(caught.exception)
    self.assertStartsWith(message, f'--allow_partial={name}: ')
    self.assertIn('(parts: actor, actor_optimizer, critic, ', message)
    self.assertNotIn('\n', message)


if __name__ == '__main__':
  absltest.main()
