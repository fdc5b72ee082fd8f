"""L19: a session whose model writes tool calls in a named format."""

import dataclasses

import tokenizers
from absl.testing import absltest
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from rl_tpu.config import schema
from rl_tpu.environments import protocol
from rl_tpu.records import records
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

MARKS = ['<end>', '<tool_call>', '</tool_call>']
TEMPLATE = (
    '{% for t in tools or [] %}{{ t | tojson }}{% endfor %}'
    "{% for m in messages %}{{ m.role + ':' + m.content + '<end>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
CALL = 'so <tool_call>{"name": "add", "arguments": {"a": 12}}</tool_call><end>'
BAD = '<tool_call>{"name": "add"</tool_call><end>'
TASK = records.Task('t', 's', 'f', 0, {})


class Adding:
  """Answers the calls of a reply; a reply without one ends the run."""

  spec = protocol.EnvironmentSpec(
      name='adding', version='1', tool_format='qwen',
      tools=({'name': 'add', 'note': '1 < 2'},),
  )

  def __init__(self, heard):
    self._heard = heard

  def reset(self, task, seed):
    del task, seed
    return protocol.Observation(prompt=(protocol.Message('user', 'go'),))

  def instruction(self):
    return ()

  def step(self, action):
    self._heard.append(action)
    if not action.calls:
      return protocol.Step(end=protocol.End(term.Termination.POLICY_STOP))
    said = [
        protocol.Message('tool', call.error or str(call.arguments['a'] + 1))
        for call in action.calls
    ]
    return protocol.Step(protocol.Observation(messages=tuple(said)))

  def evidence(self):
    return {}

  def close(self):
    pass


def _tokenizer():
  symbols = MARKS + [chr(i) for i in range(32, 127)]
  made = tokenizers.Tokenizer(
      models.WordLevel({s: i for i, s in enumerate(symbols)}, unk_token='?')
  )
  made.pre_tokenizer = pre_tokenizers.Split(
      tokenizers.Regex('.'), behavior='isolated'
  )
  made.decoder = decoders.Fuse()
  made.add_tokens(MARKS)
  return tokenizer_lib.Tokenizer(made, stop_ids=(0,))


class ToolSessionTest(absltest.TestCase):

  def run_task(self, task, replies, heard):
    """The rollout of a task with these replies."""
    tokenizer = _tokenizer()
    replies = iter(replies)
    settings = worlds.settings(
        budgets=budget.Budget(window=400),
        compaction=schema.CompactionConfig(mode='off'),
        sampling=schema.SamplingConfig(max_turn_tokens=99, stop=()),
        reward_weights={},
    )
    sampler = worlds.ScriptedSampler(tokenizer, lambda *_: next(replies))
    runner = runner_lib.Runner(
        sampler,
        desk_lib.InlinePool(lambda: Adding(heard)).acquire,
        lambda _: worlds.Done(verifiers.Score(value=1.0, solved=True)),
        lambda job: session_lib.Session(
            job, Adding.spec, chat.ChatTemplate(TEMPLATE), tokenizer, settings
        ),
    )
    (rollout,) = runner.collect([session_lib.Job('r', task, seed=0)])
    return rollout

  def test_L19_calls_reach_the_environment_and_types_the_record(self):
    tokenizer, heard = _tokenizer(), []
    rollout = self.run_task(TASK, [CALL, BAD, 'done<end>'], heard)

    self.assertEqual([a.text for a in heard], [CALL, BAD, 'done<end>'])
    (call,) = heard[0].calls
    self.assertEqual((call.name, call.arguments), ('add', {'a': 12}))
    # 'so ' is three tokens, a mark is one, and the JSON one a letter.
    body = '{"name": "add", "arguments": {"a": 12}}'
    self.assertEqual((call.start, call.stop), (3, 3 + 2 + len(body)))
    (bad,) = heard[1].calls
    self.assertEqual((bad.name, bool(bad.error)), ('', True))
    self.assertEqual(heard[2].calls, ())

    (segment,) = rollout.segments
    shown = tokenizer.decode(segment.token)
    self.assertStartsWith(
        shown, '{"name": "add", "note": "1 < 2"}user:go<end>assistant:so '
    )
    self.assertIn('</tool_call><end>tool:13<end>assistant:', shown)
    of_type = lambda name: tokenizer.decode(
        segment.token[segment.token_type == token_types.NAMES.index(name)]
    )
    self.assertEqual(of_type('tool_name'), 'add')
    self.assertEqual(of_type('arg_key'), 'a')
    self.assertEqual(of_type('arg_value'), '12')
    self.assertEqual(of_type('stop'), '<end>' * 3)

  def test_E7_a_task_shows_its_own_tools_instead_of_the_environments(self):
    tokenizer = _tokenizer()
    task = dataclasses.replace(TASK, tools=({'name': 'sub'}, {'name': 'mul'}))
    rollout = self.run_task(task, ['done<end>'], [])
    (segment,) = rollout.segments
    self.assertEqual(
        tokenizer.decode(segment.token),
        '{"name": "sub"}{"name": "mul"}user:go<end>assistant:done<end>',
    )
    # Rollouts with other tools are not compared.
    plain = self.run_task(TASK, ['done<end>'], [])
    self.assertNotEqual(rollout.tool_set_hash, plain.tool_set_hash)
    self.assertEqual(plain.tool_set_hash, Adding.spec.tool_set_hash)

  def test_a_specification_names_one_parser(self):
    with self.assertRaisesRegex(ValueError, "'json'.*qwen, llama3, glm"):
      dataclasses.replace(Adding.spec, tool_format='json')
    with self.assertRaisesRegex(ValueError, 'parse_reply or tool_format'):
      dataclasses.replace(Adding.spec, parse_reply=lambda text: [])


if __name__ == '__main__':
  absltest.main()
