"""Sessions and runner: windows, cuts, budgets, faults (R7, T14, K24, K34)."""

import dataclasses
import functools
import tempfile
import types

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.environments import arithmetic_tokenizer
from rl_tpu.environments import protocol
from rl_tpu.isolation import remote
from rl_tpu.records import records
from rl_tpu.rollout import chain
from rl_tpu.rollout import desk as desk_lib
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import budget
from rl_tpu.types import termination as term
from rl_tpu.types import token_types
from rl_tpu.verifiers import protocol as verifiers
from tests.rollout import worlds


_CONTENT = verifiers.Score(value=0.5, solved=True, components={})


class SessionTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.mkdtemp()
    arithmetic_tokenizer.build(folder)
    self.tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
    self.template = chat.ChatTemplate.from_folder(folder)
    self.spec = worlds.Counting.spec

  def _run(self, payloads, *, settings=None, sampler=None, acquire=None):
    make = functools.partial(
        session_lib.Session,
        spec=self.spec,
        template=self.template,
        tokenizer=self.tokenizer,
        settings=settings or worlds.settings(),
    )
    sampler = sampler or worlds.ScriptedSampler(self.tokenizer, worlds.line)
    acquire = acquire or desk_lib.InlinePool(worlds.Counting).acquire
    runner = runner_lib.Runner(
        sampler, acquire, lambda evidence: worlds.Done(_CONTENT), make,
    )
    jobs = [
        session_lib.Job(
            f'r{i}', records.Task(f't{i}', 's', 'f', 0, payload), seed=i
        )
        for i, payload in enumerate(payloads)
    ]
    return runner.collect(jobs), sampler

  def test_segments_form_a_chain_and_prompts_are_what_was_fed(self):
    (rollout,), sampler = self._run([{'turns': 12}])
    self.assertGreater(rollout.num_segments, 2)
    self.assertIsNone(chain.chain_problem(rollout, allow_dropped_prefix=False))
    self.assertLessEqual(max(len(s) for s in rollout.segments), 90)
    # Every prompt is a prefix of the segment it was asked in: nothing is
    # encoded a second time.
    texts = [self.tokenizer.decode(s.token) for s in rollout.segments]
    for prompt in sampler.prompts:
      self.assertTrue(any(t.startswith(prompt) for t in texts), prompt)

  def test_K19_without_stop_texts_the_folders_end_tokens_end_a_turn(self):
    settings = worlds.settings(
        sampling=schema.SamplingConfig(max_turn_tokens=8, stop=())
    )
    newline = self.tokenizer.token_id('\n')
    # The arithmetic folder names the line's end as its eos token.
    self.assertEqual(self.tokenizer.stop_ids, (newline,))
    (rollout,), _ = self._run([{'turns': 3}], settings=settings)
    segment = rollout.segments[0]
    self.assertEqual(segment.sampling.stop_ids, (newline,))
    self.assertEqual(rollout.counters['turns'], 3)
    np.testing.assert_array_equal(
        segment.token[segment.token_type == token_types.STOP], [newline] * 3
    )

  def test_R4_sampled_ids_are_kept_and_never_made_from_text(self):
    # The session's tokenizer reads ' ok' as two tokens; the policy samples it
    # letter by letter.
    made = arithmetic_tokenizer.build()
    made.add_tokens(['ok'])
    letters = self.tokenizer
    self.tokenizer = tokenizer_lib.Tokenizer(made)
    self.assertLen(self.tokenizer.encode(' ok\n'), 3)
    spelling = types.SimpleNamespace(
        decode=self.tokenizer.decode, encode=letters.encode
    )
    settings = worlds.settings(compaction=schema.CompactionConfig(mode='off'))
    (rollout,), _ = self._run(
        [{'turns': 3}],
        settings=settings,
        sampler=worlds.ScriptedSampler(spelling, worlds.line),
    )
    (segment,) = rollout.segments
    np.testing.assert_array_equal(
        segment.token[segment.is_action], np.tile(letters.encode(' ok\n'), 3)
    )

  def test_L19_the_parser_of_the_environment_sets_the_types(self):
    # Of ' ok\n' the first letter is structure and the word a tool's name.
    self.spec = dataclasses.replace(
        self.spec,
        parse_reply=lambda text: [(0, 1, 'structure'), (1, 3, 'tool_name')],
    )
    (rollout,), _ = self._run([{'turns': 12}])
    first = rollout.segments[0]
    of_role = lambda role: [
        records.TOKEN_TYPES[k] for k in first.token_type[first.role == role]
    ]
    self.assertEqual(
        of_role('A')[:4], ['structure', 'tool_name', 'tool_name', 'stop']
    )
    # Whatever a parser says of it, a summary is one; off the actions is text.
    self.assertEqual(of_role('S'), ['summary'] * 4 + ['stop'])
    self.assertEqual(set(of_role('C') + of_role('O')), {'text'})

  def test_R7_K24_the_next_window_opens_on_the_summary_alone(self):
    (rollout,), _ = self._run([{'turns': 12}])
    first, second = rollout.segments[:2]
    self.assertEqual(''.join(first.role)[-5:], 'SSSSS')
    text = self.tokenizer.decode(second.token[: second.context_length])
    self.assertTrue(
        text.startswith('task: count\nsaved: 1 2\n'), text
    )
    self.assertEqual(set(second.role[: second.context_length]), {'C'})
    self.assertEqual(second.summary_author, 'policy')

  def test_K04_a_template_that_rewrites_history_makes_a_cut(self):
    # Only the last two messages are ever shown: earlier text changes.
    self.template = chat.ChatTemplate(
        '{%- for m in messages[-3:] -%}'
        "{%- if m.role == 'assistant' -%}{{ '>' + m.content }}"
        "{%- else -%}{{ m.content + '\\n' }}{%- endif -%}"
        '{%- endfor -%}'
        "{%- if add_generation_prompt -%}{{ '>' }}{%- endif -%}"
    )
    settings = worlds.settings(compaction=schema.CompactionConfig(mode='off'))
    (rollout,), sampler = self._run([{'turns': 3}], settings=settings)
    self.assertEqual(rollout.termination, term.Termination.POLICY_STOP)
    self.assertEqual(rollout.num_segments, 3)
    self.assertIsNone(chain.chain_problem(rollout, allow_dropped_prefix=False))
    # Every action was sampled from just the tokens that stand before it, and
    # none is stored twice.
    self.assertEqual(rollout.num_actions, 3 * 4)
    for segment, prompt in zip(rollout.segments, sampler.prompts, strict=True):
      first = int(np.argmax(segment.is_action))
      self.assertEqual(self.tokenizer.decode(segment.token[:first]), prompt)

  def test_a_runtime_summary_has_no_action_tokens(self):
    settings = worlds.settings(
        compaction=schema.CompactionConfig(author='runtime')
    )
    (rollout,), _ = self._run([{'turns': 12}], settings=settings)
    self.assertGreater(rollout.num_segments, 1)
    self.assertNotIn('S', ''.join(''.join(s.role) for s in rollout.segments))
    text = self.tokenizer.decode(rollout.segments[1].token)
    self.assertIn('saved: at ', text)

  def test_an_environment_that_reads_summaries_hears_them_at_the_cut(self):
    heard = []

    class Listening(worlds.Counting):
      spec = dataclasses.replace(
          worlds.Counting.spec,
          capabilities=frozenset({protocol.READS_SUMMARY}),
      )

      def remember(self, summary):
        heard.append(summary)

      def instruction(self):
        return (protocol.Message('system', f'heard {len(heard)}'),)

    self.spec = Listening.spec
    (rollout,), _ = self._run(
        [{'turns': 12}],
        acquire=desk_lib.InlinePool(Listening).acquire,
    )
    self.assertEqual(heard, ['1 2'] * (rollout.num_segments - 1))
    text = self.tokenizer.decode(rollout.segments[1].token)
    self.assertTrue(text.startswith('heard 1\n'), text)

  def test_off_ends_a_full_window_as_context_truncation(self):
    settings = worlds.settings(compaction=schema.CompactionConfig(mode='off'))
    (rollout,), _ = self._run([{'turns': 50}], settings=settings)
    self.assertEqual(rollout.termination, term.Termination.CONTEXT_TRUNCATION)
    self.assertEqual(rollout.num_segments, 1)
    self.assertEqual(rollout.terminal_reward, 0.5)

  @parameterized.parameters(
      (dict(turns=5), 5, None),
      # Three replies of four tokens are 12; the next may take one token only.
      (dict(tokens=13), None, 13),
      # No time at all: it is over before the first reply.
      (dict(wall_s=1e-9), 0, 0),
  )
  def test_T3_T14_budgets_end_a_run_as_truncation(self, limits, turns, tokens):
    settings = worlds.settings(
        budgets=budget.Budget(window=300, **limits),
        compaction=schema.CompactionConfig(mode='off'),
    )
    (rollout,), _ = self._run([{'turns': 50}], settings=settings)
    self.assertEqual(rollout.termination, term.Termination.BUDGET_TRUNCATION)
    if turns is not None:
      self.assertEqual(rollout.counters['turns'], turns)
    if tokens is not None:
      self.assertEqual(rollout.num_actions, tokens)

  def test_an_unscored_truncation_stays_unscored(self):
    settings = worlds.settings(
        budgets=budget.Budget(window=300, turns=2), scores_truncations=False
    )
    (rollout,), _ = self._run([{'turns': 50}], settings=settings)
    self.assertIsNone(rollout.terminal_reward)

  def test_rewards_are_weighted_at_the_last_token_of_their_turn(self):
    (rollout,), _ = self._run([{'turns': 2}])
    (segment,) = rollout.segments
    places = np.flatnonzero(segment.reward)
    np.testing.assert_array_equal(segment.reward[places], [0.25, 0.25])
    stops = np.flatnonzero(
        segment.is_action & (segment.token == self.tokenizer.token_id('\n'))
    )
    np.testing.assert_array_equal(places, stops)
    self.assertEqual(len(rollout.reward_components['line']), 2)

  def test_results_do_not_depend_on_the_order_of_answers(self):
    payloads = [{'turns': n} for n in (3, 9, 1, 12, 5)]
    left, _ = self._run(payloads)
    right, _ = self._run(
        payloads,
        sampler=worlds.ScriptedSampler(
            self.tokenizer, worlds.line, per_step=1, newest_first=True
        ),
    )
    for a, b in zip(left, right):
      self.assertEqual(a.rollout_id, b.rollout_id)
      for s, t in zip(a.segments, b.segments, strict=True):
        np.testing.assert_array_equal(s.token, t.token)

  def test_every_turn_has_a_seed_of_its_own(self):
    seen = []

    def reply(text, request):
      seen.append(request.params.seed)
      return worlds.line(text, request)

    self._run(
        [{'turns': 4}, {'turns': 4}],
        sampler=worlds.ScriptedSampler(self.tokenizer, reply),
    )
    self.assertLen(set(seen), len(seen))

  def test_E7_members_of_a_group_share_the_snapshot_and_not_the_draws(self):
    seen = []

    def reply(text, request):
      seen.append(request.params.seed)
      return worlds.line(text, request)

    rollouts, _ = self._run(
        [{'turns': 1}] * 2,
        sampler=worlds.ScriptedSampler(self.tokenizer, reply),
    )
    self.assertLen({r.env_snapshot for r in rollouts}, 1)
    self.assertLen(set(seen), 2)

  @parameterized.parameters('raise', 'reset')
  def test_K34_an_environment_that_raises_ends_its_own_rollout(self, fault):
    rollouts, _ = self._run(
        [{'turns': 3}, {'turns': 3, 'fault': fault}, {'turns': 3}]
    )
    kinds = [r.termination.value for r in rollouts]
    self.assertEqual(kinds, ['policy_stop', 'infra_failure', 'policy_stop'])
    self.assertEqual(rollouts[1].fault_cause, term.FaultCause.ENVIRONMENT)
    self.assertIn('RuntimeError', rollouts[1].fault_detail)

  def test_T14_K34_an_environment_that_hangs_ends_its_own_rollout(self):
    with remote.RemotePool(
        'tests.rollout.worlds:Counting', {}, workers=3, timeout_s=1.0
    ) as pool:
      rollouts, _ = self._run(
          [{'turns': 3}, {'turns': 3, 'fault': 'hang'}, {'turns': 3},
           {'turns': 2}],
          acquire=pool.acquire,
      )
      again, _ = self._run([{'turns': 3}] * 3, acquire=pool.acquire)
    kinds = [r.termination.value for r in rollouts]
    self.assertEqual(
        kinds, ['policy_stop', 'infra_failure', 'policy_stop', 'policy_stop']
    )
    self.assertEqual(rollouts[1].fault_cause, term.FaultCause.TIMEOUT)
    self.assertEqual({r.termination.value for r in again}, {'policy_stop'})

  def test_K34_all_rollouts_failing_is_an_empty_batch_and_no_crash(self):
    rollouts, _ = self._run([{'turns': 3, 'fault': 'raise'}] * 4)
    self.assertEqual({r.termination.value for r in rollouts}, {'infra_failure'})


if __name__ == '__main__':
  absltest.main()
