"""One question and one reply, with tasks of rows and a verifier."""

from absl.testing import absltest

from rl_tpu.environments import protocol
from rl_tpu.environments import single_turn
from rl_tpu.records import records
from rl_tpu.types import termination as term
from rl_tpu.verifiers import numeric

MESSAGES = [{'role': 'user', 'content': 'What is 20 + 22?'}]


def task(messages=MESSAGES, **payload) -> records.Task:
  payload = {'messages': messages, 'answer': 'So.\n#### 42'} | payload
  return records.Task('t', 'rows', 'rows', 0, payload)


class SingleTurnTest(absltest.TestCase):

  def test_a_reply_ends_the_run_and_is_what_the_verifier_reads(self):
    world = single_turn.SingleTurn()
    observation = world.reset(task(), 0)
    self.assertEqual(world.instruction(), ())
    self.assertEqual(observation.messages, ())
    self.assertEqual(
        observation.prompt, (protocol.Message('user', 'What is 20 + 22?'),)
    )
    step = world.step(protocol.Action('#### 42<end>'))
    self.assertEqual(step.end, protocol.End(term.Termination.POLICY_STOP))
    evidence = world.evidence()
    self.assertEqual(
        evidence, {'answer': 'So.\n#### 42', 'reply': '#### 42<end>'}
    )
    self.assertTrue(numeric.NumericAnswer().score(evidence).solved)
    # The next task does not see this reply.
    world.reset(task(), 0)
    self.assertEqual(world.evidence()['reply'], '')

  def test_K19_a_reply_that_was_cut_is_a_truncation(self):
    world = single_turn.SingleTurn()
    world.reset(task(), 0)
    step = world.step(protocol.Action('#### 4', 'length'))
    self.assertEqual(step.end.kind, term.Termination.BUDGET_TRUNCATION)

  def test_an_instruction_comes_first_and_is_part_of_the_version(self):
    world = single_turn.SingleTurn(instruction='End with #### and a number.')
    world.reset(task(), 0)
    self.assertEqual(
        world.instruction(),
        (protocol.Message('system', 'End with #### and a number.'),),
    )
    plain = single_turn.SingleTurn()
    self.assertNotEqual(world.spec.version, plain.spec.version)
    own = [{'role': 'system', 'content': 'Be short.'}, *MESSAGES]
    with self.assertRaisesRegex(ValueError, 'environment.settings.instruction'):
      world.reset(task(own), 0)
    self.assertLen(plain.reset(task(own), 0).prompt, 2)

  def test_tasks_of_another_kind_are_refused(self):
    for payload in ({}, {'messages': MESSAGES}, {'answer': '3'}):
      with self.assertRaisesRegex(ValueError, 'task t: .*RowTasks'):
        single_turn.SingleTurn().reset(
            records.Task('t', 's', 'f', 0, payload), 0
        )


if __name__ == '__main__':
  absltest.main()
