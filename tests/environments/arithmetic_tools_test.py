"""The arithmetic environment, reply by reply."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.environments import arithmetic_tools
from rl_tpu.environments import protocol
from rl_tpu.records import records
from rl_tpu.text import tokenizer
from rl_tpu.types import termination as term


def problem(expression: str, answer: str) -> dict:
  """A problem as the task source writes it."""
  return {
      'generator': 'chain_sum',
      'expression': expression,
      'answer': answer,
      'entry': {'answer': answer},
  }


PROBLEMS = [problem('34 + 25', '59'), problem('9 - 12', '-3')]
TASK = records.Task('t', 's', 'f', 0, {'problems': PROBLEMS})


def texts(messages) -> list[tuple[str, str]]:
  return [(m.role, m.content) for m in messages]


class ArithmeticToolsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.world = arithmetic_tools.ArithmeticTools(problems=2, max_calls=2)
    self.first = self.world.reset(TASK, 0)

  def reply(self, text: str) -> protocol.Step:
    return self.world.step(protocol.Action(text, 'stop'))

  def test_a_whole_run(self):
    self.assertEqual(
        texts(self.world.instruction()), [('system', '2 sums, 0 lost')]
    )
    self.assertEqual(texts(self.first.messages), [])
    self.assertEqual(texts(self.first.prompt), [('user', '1: 34 + 25')])

    step = self.reply(' calc(34 + 25)\n')
    self.assertEqual(texts(step.observation.messages), [('tool', '= 59')])
    self.assertEqual(step.observation.prompt, ())
    self.assertEqual(step.rewards, {'tool_valid': 1.0})
    self.assertEqual(step.counters, {'tool_calls': 1.0, 'tool_errors': 0.0})

    step = self.reply(' answer 59\n')
    self.assertEqual(texts(step.observation.messages), [('tool', 'right')])
    self.assertEqual(texts(step.observation.prompt), [('user', '2: 9 - 12')])
    self.assertEqual(step.rewards, {'sub_answer': 1.0})
    self.assertEqual(self.world.summarise(), '59')

    step = self.reply(' answer 3\n')
    self.assertEqual(texts(step.observation.messages), [('tool', 'wrong')])
    self.assertEqual(texts(step.observation.prompt), [('user', 'report')])
    self.assertEqual(step.rewards, {'sub_answer': 0.0})
    self.assertIsNone(step.end)

    step = self.reply(' 59 -3\n')
    self.assertEqual(step.end, protocol.End(term.Termination.POLICY_STOP))
    self.assertEqual(self.world.evidence()['reported'], ['59', '-3'])

  @parameterized.parameters(
      ('59', 0),
      ('58', 1),
      ('', 1),
      ('none', 1),
      ('59 -3', 0),  # An answer that was not given yet counts for nothing.
      ('7 59', 1),  # A right answer in a wrong place is lost.
  )
  def test_the_next_window_says_what_the_summary_lost(self, summary, lost):
    self.reply(' answer 59\n')
    self.assertEqual(
        texts(self.world.instruction()), [('system', '2 sums, 0 lost')]
    )
    self.world.remember(summary)
    self.assertEqual(
        texts(self.world.instruction()), [('system', f'2 sums, {lost} lost')]
    )

  @parameterized.parameters(
      'answer 59\n',
      ' answer 59',
      ' answer 59\n\n',
      ' answer 059\n',
      ' answer -0\n',
      ' answer +59\n',
      ' answer 59 \n',
      ' answer 1234567\n',
      ' answer \n',
      ' answer 59\n right\n',
      ' Answer 59\n',
      ' 59\n',
      ' calc(34 + 25)',
      ' calc(34 + 25))\n',
      ' calc((34) + 25)\n',
      ' report\n',
      '\n',
      '',
  )
  def test_malformed_replies_fail(self, text):
    step = self.reply(text)
    self.assertEqual(step.end, protocol.End(term.Termination.FAILURE))
    self.assertEqual(step.counters, {'malformed': 1.0})
    self.assertEqual(self.world.evidence()['reported'], [])

  @parameterized.parameters(' 59,-3\n', ' 59\n x\n', ' 59  -3\n', '59 -3\n')
  def test_malformed_reports_fail(self, text):
    self.reply(' answer 1\n')
    self.reply(' answer 1\n')
    self.assertEqual(
        self.reply(text).end, protocol.End(term.Termination.FAILURE)
    )

  @parameterized.parameters('34 / 25', '2 ** 2', 'abc', '', '34 +')
  def test_T14_a_bad_call_is_a_tool_error_and_no_end(self, expression):
    step = self.reply(f' calc({expression})\n')
    self.assertIsNone(step.end)
    self.assertEqual(texts(step.observation.messages), [('tool', '= err')])
    self.assertEqual(step.rewards, {'tool_valid': 0.0})
    self.assertEqual(step.counters, {'tool_calls': 1.0, 'tool_errors': 1.0})

  def test_a_third_call_for_a_problem_fails(self):
    self.reply(' calc(1)\n')
    self.reply(' calc(1)\n')
    self.reply(' answer 1\n')
    # Counted per problem: the next one has two calls again.
    self.reply(' calc(1)\n')
    self.assertIsNone(self.reply(' calc(1)\n').end)
    self.assertEqual(
        self.reply(' calc(1)\n').end, protocol.End(term.Termination.FAILURE)
    )

  def test_an_ended_run_takes_no_step(self):
    self.reply('nonsense')
    with self.assertRaisesRegex(RuntimeError, 'reset'):
      self.reply(' answer 59\n')

  def test_K02_evidence_holds_only_what_the_policy_reported(self):
    # The tool result is the gold answer; the policy never says it.
    self.reply(' calc(34 + 25)\n')
    self.reply(' answer 1\n')
    self.reply(' calc(9 - 12)\n')
    self.reply(' answer 2\n')
    self.reply(' 1 2\n')
    evidence = self.world.evidence()
    self.assertEqual(evidence, {'problems': PROBLEMS, 'reported': ['1', '2']})
    json.dumps(evidence)

  def test_evidence_cannot_be_edited_from_outside(self):
    self.world.evidence()['problems'][0]['answer'] = '1'
    self.world.evidence()['problems'].clear()
    self.assertEqual(self.world.evidence()['problems'], PROBLEMS)

  def test_E6_state_ids_tell_states_apart_and_equal_states_together(self):
    ids = [self.world.state_id()]
    for text in (' calc(34 + 25)\n', ' answer 59\n', ' answer 3\n'):
      self.reply(text)
      ids.append(self.world.state_id())
    self.assertLen(set(ids), 4)
    other = arithmetic_tools.ArithmeticTools(problems=2)
    other.reset(TASK, 7)
    self.assertEqual(other.state_id(), ids[0])
    other.step(protocol.Action(' answer 59\n'))
    # The same answers by another way are the same state.
    self.assertEqual(other.state_id(), ids[2])

  def test_reset_leaves_nothing_behind(self):
    self.reply(' calc(34 + 25)\n')
    self.reply(' answer 59\n')
    before = self.world.state_id()
    self.world.reset(TASK, 0)
    self.assertEqual(self.world.summarise(), 'none')
    self.assertEqual(self.world.progress.calls, 0)
    self.assertNotEqual(self.world.state_id(), before)

  def test_spec_follows_settings(self):
    other = arithmetic_tools.ArithmeticTools(problems=2, max_calls=3)
    self.assertNotEqual(self.world.spec.version, other.spec.version)
    self.assertNotEqual(self.world.spec.tool_set_hash, other.spec.tool_set_hash)
    self.assertFalse(self.world.spec.blocking)
    self.assertIn(protocol.RUNTIME_SUMMARY, self.world.spec.capabilities)

  def test_a_task_of_another_size_is_refused(self):
    world = arithmetic_tools.ArithmeticTools(problems=3)
    with self.assertRaisesRegex(ValueError, '2 problems.*problems = 3'):
      world.reset(TASK, 0)

  @parameterized.parameters(({'problems': 0},), ({'max_calls': -1},))
  def test_settings_are_checked(self, settings):
    with self.assertRaisesRegex(ValueError, 'environment.settings'):
      arithmetic_tools.ArithmeticTools(**settings)


class TokenizerTest(absltest.TestCase):

  def test_the_vocabulary_is_exact(self):
    folder = self.create_tempdir().full_path
    arithmetic_tokenizer.build(folder)
    made = tokenizer.Tokenizer.from_folder(folder)
    # pad, newline, space, 10 digits, 6 operators and brackets, ',', ':', '>',
    # 26 letters.
    self.assertEqual(made.size, 1 + 2 + 10 + 6 + 3 + 26)
    self.assertEqual(made.pad_id, 0)
    self.assertLen(made.encode(arithmetic_tokenizer.SYMBOLS), made.size - 1)

  def test_newline_is_one_token_and_pad_survives_a_round_trip(self):
    made = tokenizer.Tokenizer(arithmetic_tokenizer.build())
    self.assertEqual(made.decode([made.token_id('\n')]), '\n')
    # A policy may sample the pad token into its summary.
    ids = [5, 0, 1, 0, 0, 7]
    self.assertEqual(made.encode(made.decode(ids)).tolist(), ids)

  def test_two_builds_are_equal(self):
    folders = [self.create_tempdir().full_path for _ in range(2)]
    hashes = set()
    for folder in folders:
      arithmetic_tokenizer.build(folder)
      hashes.add(tokenizer.Tokenizer.from_folder(folder).hash)
    self.assertLen(hashes, 1)


if __name__ == '__main__':
  absltest.main()
