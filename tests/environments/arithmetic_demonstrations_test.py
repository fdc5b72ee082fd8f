"""Scripted rollouts, with cuts and without."""

import math
import re

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import arithmetic_demonstrations as demonstrations
from rl_tpu.environments import arithmetic_tools
from rl_tpu.environments import protocol
from rl_tpu.records import records
from rl_tpu.types import termination as term

CLEAN = dict(
    skip=0.0,
    corrupt_call=0.0,
    corrupt_answer=0.0,
    corrupt_summary=0.0,
    corrupt_report=0.0,
)


def task(rng: np.random.Generator) -> records.Task:
  """Three sums of two numbers below 100."""
  problems = []
  for _ in range(3):
    a, b = (int(x) for x in rng.integers(1, 100, 2))
    problems.append({
        'generator': 'chain_sum',
        'expression': f'{a} - {b}',
        'answer': str(a - b),
        'entry': {'answer': str(a - b)},
    })
  return records.Task('t', 's', 'f', 0, {'problems': problems})


def play(script, world, rng, *, cut_every: int = 0):
  """One run; returns its end, its replies and whether all is right."""
  world.reset(task(rng), 0)
  replies = []
  for turn in range(1, 50):
    text = script.reply(world, 'turn', rng)
    replies.append(text)
    step = world.step(protocol.Action(text))
    if step.end is not None:
      evidence = world.evidence()
      answers = [p['answer'] for p in evidence['problems']]
      return step.end, replies, evidence['reported'] == answers
    if cut_every and turn % cut_every == 0:
      replies.append(script.reply(world, 'summary', rng))
  raise AssertionError('the script does not come to an end')


class ScriptedPolicyTest(parameterized.TestCase):

  @parameterized.parameters(0, 1, 2, 3)
  def test_without_faults_every_run_succeeds(self, cut_every):
    script = demonstrations.ScriptedPolicy(**CLEAN)
    world = arithmetic_tools.ArithmeticTools()
    for seed in range(50):
      rng = np.random.default_rng(seed)
      end, _, solved = play(script, world, rng, cut_every=cut_every)
      self.assertEqual(end.kind, term.Termination.POLICY_STOP)
      self.assertTrue(solved)

  def test_with_all_faults_no_run_is_malformed(self):
    script = demonstrations.ScriptedPolicy(
        skip=0.5,
        corrupt_call=0.9,
        corrupt_answer=0.9,
        corrupt_summary=0.9,
        corrupt_report=0.9,
    )
    for seed in range(200):
      rng = np.random.default_rng(seed)
      world = arithmetic_tools.ArithmeticTools()
      end, replies, _ = play(script, world, rng, cut_every=2)
      self.assertEqual(end.kind, term.Termination.POLICY_STOP, replies)
      for text in replies:
        self.assertTrue(text.endswith('\n'))
        self.assertEqual(text.count('\n'), 1)

  def test_the_tool_is_skipped_in_half_of_the_problems(self):
    script = demonstrations.ScriptedPolicy()
    calls = problems = solved = 0
    for seed in range(400):
      rng = np.random.default_rng(seed)
      world = arithmetic_tools.ArithmeticTools()
      _, replies, right = play(script, world, rng, cut_every=2)
      calls += sum(text.startswith(' calc') for text in replies)
      problems += sum(text.startswith(' answer') for text in replies)
      solved += right
    # 1200 draws at 0.5: three standard deviations are 3 * sqrt(0.25 / 1200).
    spread = 3 * math.sqrt(0.25 / problems)
    self.assertAlmostEqual(calls / problems, 0.5, delta=spread)
    # (0.5 + 0.5 * 0.2)^3 = 0.216 before the other faults.
    self.assertBetween(solved / 400, 0.08, 0.25)

  def test_a_fault_in_a_summary_stays(self):
    # Every summary loses or changes an entry, so no report can be right.
    script = demonstrations.ScriptedPolicy(**(CLEAN | {'corrupt_summary': 1.0}))
    for seed in range(30):
      rng = np.random.default_rng(seed)
      world = arithmetic_tools.ArithmeticTools()
      _, replies, solved = play(script, world, rng, cut_every=2)
      self.assertFalse(solved, replies)

  def test_interleaved_runs_keep_their_notes_apart(self):
    script = demonstrations.ScriptedPolicy(**CLEAN)
    rng = np.random.default_rng(0)
    worlds = [arithmetic_tools.ArithmeticTools() for _ in range(3)]
    for world in worlds:
      world.reset(task(rng), 0)
    for _ in range(7):
      for world in worlds:
        world.step(protocol.Action(script.reply(world, 'turn', rng)))
    for world in worlds:
      evidence = world.evidence()
      self.assertEqual(
          evidence['reported'], [p['answer'] for p in evidence['problems']]
      )

  def test_summary_before_any_answer(self):
    script = demonstrations.ScriptedPolicy(**CLEAN)
    world = arithmetic_tools.ArithmeticTools()
    rng = np.random.default_rng(0)
    world.reset(task(rng), 0)
    self.assertEqual(script.reply(world, 'summary', rng), ' none\n')

  @parameterized.parameters('7', '-7', '10', '-10', '0', '105')
  def test_corrupt_numbers_are_other_canonical_numbers(self, number):
    for seed in range(100):
      rng = np.random.default_rng(seed)
      changed = demonstrations.corrupt_number(number, rng)
      self.assertNotEqual(changed, number)
      self.assertRegex(changed, re.compile(r'^(0|-?[1-9][0-9]*)$'))

  def test_probabilities_are_checked(self):
    with self.assertRaisesRegex(ValueError, 'sft.settings.skip = 1.5'):
      demonstrations.ScriptedPolicy(skip=1.5)


if __name__ == '__main__':
  absltest.main()
