"""`inspect`: which rollouts are shown, and what a reader sees."""

import contextlib
import dataclasses
import io
import pathlib

from absl.testing import absltest
import numpy as np

from rl_tpu.cli import inspecting
from rl_tpu.cli import main
from rl_tpu.cli import verbs
from rl_tpu.records import hashes
from rl_tpu.records import jsonl
from rl_tpu.records import records
from rl_tpu.types import budget as budget_lib
from rl_tpu.types import termination as term
from rl_tpu.types import token_types


def rollout(name: str, score: float | None) -> records.Rollout:
  roles = 'CCAA'
  segment = records.Segment(
      rollout_id=name,
      segment_index=0,
      global_token_offset=0,
      action_offset=0,
      turn_offset=0,
      end_kind='policy_stop',
      prev_state_ref=None,
      next_state_ref=None,
      summary_hash=None,
      summary_author=None,
      context_length=2,
      context_hash=hashes.token_hash(np.array([91, 97])),
      token=np.array([91, 97, 98, 10], np.int32),
      role=np.array(list(roles)),
      turn_id=np.array([-1, -1, 0, 0], np.int32),
      token_type=np.zeros(4, np.int32),
      reward=np.array([0, 0, 0, 0.5]),
      behaviour_logprob=np.zeros(4, np.float32),
      behaviour_version=np.array([-1, -1, 0, 0], np.int32),
  )
  return records.Rollout(
      rollout_id=name,
      task_id='t',
      source='',
      task_family='',
      group_id=None,
      termination=term.Termination.POLICY_STOP,
      abort_cause=None,
      fault_cause=None,
      terminal_reward=score,
      solved=score == 1.0,
      reward_components={},
      env_name='',
      env_version='',
      env_seed=0,
      env_snapshot='',
      permissions_hash='',
      tool_set_hash='',
      verifier_id='',
      verifier_version='',
      verifier_input_hash='',
      budgets=budget_lib.Budget(),
      num_segments=1,
      segments=(segment,),
  )


class InspectTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.create_tempdir().full_path
    scores = {'a': 0.5, 'b': 1.0, 'c': None, 'd': 0.0}
    jsonl.write(
        jsonl.rollouts_path(self.workdir, 2),
        [rollout(name, score) for name, score in scores.items()],
    )
    jsonl.write(jsonl.rollouts_path(self.workdir, 1), [rollout('old', 0.0)])
    segments = [{
        'advantage': [0, 0, 0.5, -1.5],
        'value': [0, 0, 0.25, 0.5],
        'policy_mask': [0, 0, 1, 1],
    }]
    jsonl.write_lines(
        jsonl.estimates_path(self.workdir, 2),
        [{'rollout_id': 'a', 'segments': segments}],
    )

  def chosen(self, **changes) -> list[str]:
    fields = dict(step=0, rollout_id='', order='first', limit=9) | changes
    found = inspecting.choose(self.workdir, **fields)
    return [r.rollout_id for r, _ in found]

  def test_choice(self):
    self.assertEqual(self.chosen(), ['a', 'b', 'c', 'd'])
    self.assertEqual(self.chosen(limit=2), ['a', 'b'])
    self.assertEqual(self.chosen(step=1), ['old'])
    self.assertEqual(self.chosen(order='best'), ['b', 'a', 'd'])
    self.assertEqual(self.chosen(order='worst'), ['d', 'a', 'b'])
    self.assertEqual(self.chosen(rollout_id='c'), ['c'])

  def test_refusals(self):
    with self.assertRaisesRegex(ValueError, '--step=9: .* steps 1 to 2'):
      self.chosen(step=9)
    with self.assertRaisesRegex(ValueError, '--rollout=x: step 2'):
      self.chosen(rollout_id='x')
    with self.assertRaisesRegex(ValueError, '--limit=0'):
      self.chosen(limit=0)

  def test_shows_every_column_and_keeps_brackets(self):
    out = io.StringIO()
    chosen = inspecting.choose(
        self.workdir, step=2, rollout_id='a', order='first', limit=1
    )
    with contextlib.redirect_stdout(out):
      inspecting.show(
          chosen, lambda ids: ''.join(map(chr, ids)), verbs.console()
      )
    text = out.getvalue()
    for part in ('segment', 'mask', 'rollout a', 'score 0.5', 'not solved'):
      self.assertIn(part, text)
    (action,) = [line for line in text.splitlines() if 'action' in line]
    for part in ('b', '0.5', '-0.500', '0.250', '2/2'):
      self.assertIn(part, action)
    (context,) = [line for line in text.splitlines() if 'context' in line]
    self.assertIn('[a', context)
    self.assertIn('0/2', context)

  def shown(self, made: records.Rollout, decode, **how) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      inspecting.show([(made, None)], decode, verbs.console(), **how)
    return out.getvalue()

  def test_nothing_in_a_text_steers_the_terminal(self):
    nasty = (
        '\x1b]0;title\x07\x1b[2J\x9b1m\u202eabc\u2066\u200b\r\x08\ud800\x00é語'
    )
    made = dataclasses.replace(
        rollout('a\x1b[31m', 1.0),
        fault_detail='\x1b[2Jdetail',
        score_components={'\x1b[1mname': 1.0},
    )
    text = self.shown(made, lambda _: nasty)
    for character in text:
      self.assertTrue(character.isprintable() or character == '\n', character)
    self.assertIn('\\x1b[2J', text)
    self.assertIn('é語', text)

  def test_cuts_calls_seconds_and_faults_are_seen(self):
    made = rollout('a', 1.0)
    (segment,) = made.segments
    typed = np.array([0, 0, token_types.TOOL_NAME, 0], np.int32)
    first = dataclasses.replace(
        segment,
        end_kind='compaction_cut',
        cut_cause='runtime_summary',
        token_type=typed,
    )
    made = dataclasses.replace(
        made,
        segments=(first, dataclasses.replace(segment, segment_index=1)),
        num_segments=2,
        seconds={'tool': 1.5, 'decoding': 0.25},
        score_components={'share_right': 0.75},
        fault_trace='Traceback\n  File "x"',
    )
    text = self.shown(made, lambda ids: ''.join(map(chr, ids)))
    for part in (
        'compaction_cut by runtime_summary, after 4 tokens',
        'policy_stop, after 4 tokens',
        'decoding 0.25, tool 1.5',
        'share_right 0.75',
        'cuts: runtime_summary 1',
        '  File "x"',
        'action 0',
        'calls b',
    ):
      self.assertIn(part, text)

  def test_a_long_text_is_cut_in_the_middle_unless_it_is_asked_for(self):
    long = 'begin' + 'q' * 5000 + 'end'
    text = self.shown(rollout('a', 1.0), lambda _: long)
    self.assertIn('[... 3008 characters ...]', text)
    self.assertIn('begin', text)
    whole = self.shown(rollout('a', 1.0), lambda _: long, whole=True)
    self.assertEqual(whole.count('q'), 2 * 5000)

  def test_command_shows_ids_where_there_is_no_tokenizer(self):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      code = main.main(['inspect', f'--workdir={self.workdir}', '--limit=1'])
    self.assertEqual(code, 0)
    self.assertIn('98 10', out.getvalue())

  def test_L18_numbers_that_were_not_finite_are_shown_as_such(self):
    segments = [{
        'advantage': [0, 0, None, -1.5],
        'value': [0, 0, None, 0.5],
        'policy_mask': [0, 0, 1, 1],
    }]
    jsonl.write_lines(
        jsonl.estimates_path(self.workdir, 2),
        [{'rollout_id': 'a', 'segments': segments}],
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      code = main.main(['inspect', f'--workdir={self.workdir}', '--limit=1'])
    self.assertEqual(code, 0)
    (action,) = [l for l in out.getvalue().splitlines() if 'action' in l]
    self.assertEqual(action.count('nan'), 2)

  def test_a_folder_or_a_dump_has_to_be_named(self):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      code = main.main(['inspect'])
    self.assertEqual(code, 2)
    self.assertIn('--workdir is missing', err.getvalue())

  def test_damaged_file_is_one_line(self):
    path = jsonl.rollouts_path(self.workdir, 2)
    path.write_text('{"schema_version": 7}\n')
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      code = main.main(['inspect', f'--workdir={self.workdir}'])
    self.assertEqual(code, 2)
    self.assertIn(
        f'{pathlib.Path(path).name}:1: schema_version=7', err.getvalue()
    )
    self.assertLen(err.getvalue().splitlines(), 1)


if __name__ == '__main__':
  absltest.main()
