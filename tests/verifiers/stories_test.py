"""Endings of stories, scored by hand."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.verifiers import protocol
from rl_tpu.verifiers import stories


class NounVerifierTest(parameterized.TestCase):

  @parameterized.parameters(
      (' He found the ball.', 1.0),
      (' "Ball!" he said.', 1.0),
      ('ball is what he found', 1.0),
      (' He found it.\nThe ball<s>', 1.0),
      (' He found the\nball\n', 1.0),
      # Another word that holds it.
      (' He found the balls.', 0.0),
      (' He found the football.', 0.0),
      # The limit of tokens may have cut "balloon" off.
      (' He found the ball', 0.0),
      (' He found it.', 0.0),
      ('', 0.0),
  )
  def test_the_noun_as_a_whole_word(self, ending, value):
    score = stories.NounVerifier().score({'noun': 'ball', 'ending': ending})
    self.assertEqual(score, protocol.Score(value, bool(value), {}))

  def test_evidence_without_a_noun_is_no_score(self):
    with self.assertRaises(ValueError):
      stories.NounVerifier().score({'noun': '', 'ending': ' a b.'})


if __name__ == '__main__':
  absltest.main()
