"""Rollouts on disk are lossless and refuse what they cannot hold (R8)."""

import dataclasses
import json
import math
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np

from rl_tpu.records import hashes
from rl_tpu.records import jsonl
from rl_tpu.records import records
from rl_tpu.types import budget as budget_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term

SAMPLING = records.Sampling(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    stop_ids=(2, 7),
    seed=2**63 - 1,
    sampler_build='build',
    sampler_dtype='float32',
    template_hash='t',
    tokenizer_hash='k',
)


def segment(index: int = 0, roles: str = 'CCAAOS', **changes):
  """A segment with numbers that a careless format would change."""
  length = len(roles)
  is_action = np.array([r in 'AS' for r in roles])
  fields = dict(
      rollout_id='r',
      segment_index=index,
      global_token_offset=3 * index,
      action_offset=index,
      turn_offset=index,
      end_kind='compaction_cut',
      prev_state_ref=f's#r/{index}' if index else None,
      next_state_ref=f's#r/{index + 1}',
      summary_hash=None,
      summary_author=None,
      context_length=2,
      token=np.arange(length, dtype=np.int32) * 1000,
      role=np.array(list(roles), 'U1'),
      turn_id=np.where(is_action, index, -1).astype(np.int32),
      token_type=np.zeros(length, np.int32),
      reward=np.where(is_action, 0.1 + 0.2, 0.0),
      behaviour_logprob=np.where(is_action, -0.1, 0).astype(np.float32),
      behaviour_version=np.where(is_action, 5, -1).astype(np.int32),
      sampling=SAMPLING,
      cut_cause='template',
  )
  fields |= changes
  context = fields['token'][: fields['context_length']]
  return records.Segment(
      **({'context_hash': hashes.token_hash(context)} | fields)
  )


def rollout(*segments: records.Segment, **changes) -> records.Rollout:
  fields = dict(
      rollout_id='r',
      task_id='t',
      source='src',
      task_family='fam',
      group_id=None,
      termination=term.Termination.POLICY_STOP,
      abort_cause=None,
      fault_cause=None,
      terminal_reward=1 / 3,
      solved=True,
      reward_components={'tool_valid': [(0, 2, 1.0), (1, 3, 0.5)], 'none': []},
      env_name='e',
      env_version='1',
      env_seed=2**40,
      env_snapshot='s',
      permissions_hash='p',
      tool_set_hash='u',
      verifier_id='v',
      verifier_version='1',
      verifier_input_hash='i',
      budgets=budget_lib.Budget(turns=3, wall_s=1.5, window=64),
      num_segments=len(segments),
      segments=tuple(segments),
      t_start=1.1,
      state_ids={0: 'a', 3: 'b'},
      counters={'tool_calls': 2, 'share': 0.25},
      seconds={'environment': 0.1 + 0.2},
      fault_trace='line 1\nline 2',
      score_components={'share_right': 0.1 + 0.2},
      safety_events=(('denied', 0, 3),),
  )
  return records.Rollout(**(fields | changes))


def assert_same(test, left, right):
  """Field by field, types and dtypes included."""
  for field in dataclasses.fields(left):
    a, b = getattr(left, field.name), getattr(right, field.name)
    if field.name == 'segments':
      test.assertLen(b, len(a))
      for one, other in zip(a, b):
        assert_same(test, one, other)
    elif isinstance(a, support_lib.Support):
      for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    elif isinstance(a, np.ndarray):
      np.testing.assert_array_equal(a, b, err_msg=field.name, strict=True)
    else:
      test.assertEqual(a, b, field.name)
      test.assertIs(type(a), type(b), field.name)


class JsonlTest(parameterized.TestCase):

  def path(self) -> pathlib.Path:
    return pathlib.Path(self.create_tempdir().full_path) / 'a' / 'x.jsonl'

  def round_trip(self, *rollouts):
    path = self.path()
    jsonl.write(path, rollouts)
    return list(jsonl.read(path))

  def test_R6_what_a_file_says_of_itself_has_to_be_so(self):
    for changes, wanted in (
        ({'context_hash': 'h'}, 'context_hash'),
        ({'context_length': 1}, 'holds an action|context_hash'),
        ({'next_state_ref': 'other#r/1'}, 'lineage'),
        ({'summary_hash': 'h', 'summary_author': 'policy'}, 'summary'),
    ):
      whole, path = segment(0), self.path()
      broken = rollout(dataclasses.replace(whole, **changes))
      jsonl.write(path, [rollout(whole), broken])
      with self.assertRaisesRegex(ValueError, f':2: r: .*({wanted})'):
        list(jsonl.read(path))
      # What admission refused for it can be looked at.
      reason = term.DiscardReason.BROKEN_CHAIN
      jsonl.write(path, [dataclasses.replace(broken, discard_reason=reason)])
      self.assertLen(list(jsonl.read(path)), 1)

  def test_the_hash_of_a_value_is_that_of_its_canonical_json(self):
    # blake2b, 8 bytes, of {"a":[1,"\u00e9"],"b":null}: worked with b2sum.
    self.assertEqual(
        hashes.json_hash({'b': None, 'a': (1, 'é')}), 'd457c0a2bfde2a71'
    )

  def test_R8_round_trip_is_lossless(self):
    first = rollout(
        segment(0, cut_cause='unknown'),
        segment(
            1,
            'CCO',
            end_kind='policy_stop',
            next_state_ref=None,
            sampling=None,
            summary_hash='h',
            summary_author='policy',
        ),
        segment(
            2,
            support=support_lib.Support(
                np.array([0, 0, 2, -1, 0, 1], np.int32),
                np.array([7, 3000, 4000], np.int32),
            ),
        ),
    )
    second = rollout(
        segment(0, end_kind='infra_failure'),
        termination=term.Termination.INFRA_FAILURE,
        fault_cause=term.FaultCause.TIMEOUT,
        discard_reason=term.DiscardReason.INFRA_FAILURE,
        terminal_reward=None,
        solved=None,
        fault_detail='hung "twice"\nlines',
    )
    third = rollout(
        termination=term.Termination.RUNTIME_ABORT,
        abort_cause=term.AbortCause.OPERATOR,
    )
    found = self.round_trip(first, second, third)
    self.assertLen(found, 3)
    for before, after in zip((first, second, third), found):
      assert_same(self, before, after)

  @hypothesis.given(
      logprob=hnp.arrays(
          np.float32, 6, elements=st.floats(-(2.0**100), 0, width=32)
      ),
      reward=hnp.arrays(np.float64, 6, elements=st.floats(-1e300, 1e300)),
      version=hnp.arrays(np.int32, 6, elements=st.integers(-1, 3)),
      score=st.one_of(
          st.none(), st.floats(allow_nan=False, allow_infinity=False)
      ),
  )
  @hypothesis.settings(max_examples=50, deadline=None)
  def test_R8_any_finite_number_round_trips(
      self, logprob, reward, version, score
  ):
    before = rollout(
        segment(
            behaviour_logprob=logprob, reward=reward, behaviour_version=version
        ),
        terminal_reward=score,
    )
    after = jsonl.decode(json.loads(json.dumps(jsonl.encode(before))))
    assert_same(self, before, after)

  def test_R8_float32_is_written_short(self):
    line = json.dumps(jsonl.encode(rollout(segment())))
    self.assertIn('-0.1,', line)
    self.assertNotIn('-0.10000000149', line)

  @parameterized.parameters(1, 4, '3', None)
  def test_R8_unknown_schema_version_is_refused(self, version):
    path = self.path()
    data = jsonl.encode(rollout(segment())) | {'schema_version': version}
    jsonl.write_lines(path, [jsonl.encode(rollout(segment())), data])
    with self.assertRaisesRegex(ValueError, r'x.jsonl:2: schema_version='):
      list(jsonl.read(path))

  def test_a_file_of_version_2_knows_no_cause_of_a_cut(self):
    data = jsonl.encode(
        rollout(segment(), segment(1, end_kind='policy_stop'))
    )
    data['schema_version'] = 2
    for name in ('fault_trace', 'seconds'):
      del data[name]
    for part in data['segments']:
      del part['cut_cause']
    read = jsonl.decode(data)
    self.assertEqual([s.cut_cause for s in read.segments], ['unknown', None])
    self.assertEqual(read.seconds, {})

  @parameterized.parameters(math.nan, math.inf, -math.inf)
  def test_R8_numbers_that_are_not_finite_are_refused(self, number):
    reward = np.array([0, 0, number, 0, 0, 0])
    faulty = [
        (rollout(segment(), terminal_reward=number), 'terminal_reward'),
        (rollout(segment(reward=reward)), r'segments\[0\].reward\[2\]'),
        (
            rollout(segment(behaviour_logprob=reward.astype(np.float32))),
            r'segments\[0\].behaviour_logprob\[2\]',
        ),
        (
            rollout(segment(), reward_components={'x': [(0, 1, number)]}),
            'reward_components.x',
        ),
        (rollout(segment(), counters={'c': number}), 'counters.c'),
    ]
    for record, field in faulty:
      path = self.path()
      with self.assertRaisesRegex(ValueError, f'r: {field}'):
        jsonl.write(path, [rollout(segment()), record])
      self.assertFalse(path.exists())
      self.assertEmpty(list(path.parent.iterdir()))

  def test_R8_array_that_would_lose_digits_is_refused(self):
    wide = np.full(6, -0.1, np.float64)
    with self.assertRaisesRegex(
        ValueError, 'behaviour_logprob must be float32'
    ):
      jsonl.encode(rollout(segment(behaviour_logprob=wide)))
    with self.assertRaisesRegex(ValueError, r'turn_id must be int32 \[6\]'):
      jsonl.encode(rollout(segment(turn_id=np.zeros(5, np.int32))))
    with self.assertRaisesRegex(ValueError, 'role must be 6 letters'):
      jsonl.encode(rollout(segment(role=np.array(list('CCAAOX')))))

  @parameterized.parameters(
      (lambda d: d.pop('solved'), 'a Rollout without solved'),
      (lambda d: d.update(extra=1), 'Rollout has no field extra'),
      (lambda d: d['segments'][0].pop('role'), 'a Segment without role'),
      (lambda d: d['segments'][0]['token'].pop(), 'columns of'),
      (lambda d: d.update(termination='sleepy'), 'sleepy'),
  )
  def test_malformed_line_is_named(self, damage, message):
    data = jsonl.encode(rollout(segment()))
    damage(data)
    path = self.path()
    jsonl.write_lines(path, [data])
    with self.assertRaisesRegex(ValueError, f'x.jsonl:1: .*{message}'):
      list(jsonl.read(path))

  def test_broken_json_is_named(self):
    path = self.path()
    path.parent.mkdir()
    path.write_text('{"a": 1}\n\n{"a": NaN}\n')
    with self.assertRaisesRegex(ValueError, r'x.jsonl:3: not JSON'):
      list(jsonl.read_lines(path))
    path.write_text('[1]\n')
    with self.assertRaisesRegex(ValueError, r'x.jsonl:1: not a JSON object'):
      list(jsonl.read_lines(path))

  def test_R5_a_support_that_does_not_fit_its_tokens_is_refused(self):
    short = support_lib.Support(np.zeros(2, np.int32), np.zeros(0, np.int32))
    more = support_lib.Support(np.zeros(6, np.int32), np.ones(1, np.int32))
    for wrong in (short, more):
      with self.assertRaisesRegex(ValueError, 'r segment 0: support'):
        jsonl.write(self.path(), [rollout(segment(support=wrong))])

  def test_failed_write_keeps_the_old_file(self):
    path = self.path()
    jsonl.write(path, [rollout(segment())])
    with self.assertRaises(ValueError):
      jsonl.write(path, [rollout(segment(), terminal_reward=math.nan)])
    self.assertLen(list(jsonl.read(path)), 1)

  def test_steps_and_discarding_later_ones(self):
    folder = self.create_tempdir().full_path
    self.assertEqual(jsonl.steps(folder), [])
    for step in (3, 10, 2):
      jsonl.write(jsonl.rollouts_path(folder, step), [])
      jsonl.write_lines(jsonl.estimates_path(folder, step), [])
    self.assertEqual(jsonl.steps(folder), [2, 3, 10])
    jsonl.discard_after(folder, 2)
    self.assertEqual(jsonl.steps(folder), [2])
    self.assertLen(list((pathlib.Path(folder) / 'rollouts').iterdir()), 2)


if __name__ == '__main__':
  absltest.main()
