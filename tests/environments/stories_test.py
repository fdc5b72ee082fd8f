"""The story environment, reply by reply."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import protocol
from rl_tpu.environments import stories
from rl_tpu.records import records
from rl_tpu.types import termination as term

TASK = records.Task(
    't', 's', 'f', 0, {'noun': 'ball', 'line': 'Tim looked for a ball.'}
)


class StoriesTest(parameterized.TestCase):

  def world(self, **settings) -> stories.Stories:
    made = stories.Stories(**settings)
    self.assertEqual(made.reset(TASK, 0), protocol.Observation())
    return made

  def test_the_line_opens_every_window(self):
    world = self.world(replies=2)
    opening = (protocol.Message('system', 'Tim looked for a ball.'),)
    self.assertEqual(world.instruction(), opening)
    world.step(protocol.Action(' He ran.'))
    self.assertEqual(world.instruction(), opening)

  def test_the_last_reply_is_judged(self):
    world = self.world(replies=2)
    step = world.step(protocol.Action(' He had the ball.'))
    self.assertEqual(step, protocol.Step(protocol.Observation()))
    step = world.step(protocol.Action(' He ran', 'length'))
    self.assertEqual(step.end, protocol.End(term.Termination.POLICY_STOP))
    self.assertEqual(
        world.evidence(), {'noun': 'ball', 'ending': ' He ran'}
    )

  def test_the_latest_replies_are_kept_word_for_word(self):
    world = self.world(replies=9, kept=2)
    for text in (' One.', ' Two.', ' Three.'):
      world.step(protocol.Action(text))
    self.assertEqual(world.summarise(), ' Two. Three.')

  @parameterized.parameters(
      (1, term.Termination.FAILURE), (2, term.Termination.POLICY_STOP)
  )
  def test_a_story_that_ends_too_soon_is_a_failure(self, reply, kind):
    world = self.world(replies=2)
    for _ in range(reply - 1):
      world.step(protocol.Action(' He ran.'))
    step = world.step(protocol.Action(' The end.<s>'))
    self.assertEqual(step.end, protocol.End(kind))
    with self.assertRaisesRegex(RuntimeError, 'reset'):
      world.step(protocol.Action(' More.'))

  def test_a_reset_forgets_the_story(self):
    world = self.world(replies=1)
    world.step(protocol.Action(' He ran.'))
    world.reset(TASK, 0)
    world.step(protocol.Action(' He sat.'))
    self.assertEqual(world.evidence()['ending'], ' He sat.')
    world.close()
    with self.assertRaises(RuntimeError):
      world.step(protocol.Action(' More.'))

  def test_settings_are_part_of_the_version(self):
    versions = {
        stories.Stories(**settings).spec.version
        for settings in ({}, {'replies': 2}, {'kept': 2}, {'end': '</s>'})
    }
    self.assertLen(versions, 4)

  @parameterized.parameters(
      ({'replies': 0}, 'environment.settings.replies = 0'),
      ({'kept': 0}, 'environment.settings.kept = 0'),
      ({'end': ''}, "environment.settings.end = ''"),
  )
  def test_bad_settings_are_refused(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      stories.Stories(**settings)


if __name__ == '__main__':
  absltest.main()
