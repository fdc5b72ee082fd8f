"""Streams under templates of the shapes that published models use.

The templates are our own and short; each keeps what its family does to a
conversation: Qwen ends a turn with a token and drops earlier reasoning, Llama
trims and writes JSON, GLM ends a turn with the next turn's header.
"""

import json
import pathlib

import numpy as np
import tokenizers
from absl.testing import absltest
from absl.testing import parameterized
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from rl_tpu.text import chat
from rl_tpu.text import tokenizer

Message = chat.Message

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set at = namespace(query=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set at.query = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set said = m.content %}
    {%- if m.role == 'assistant' and loop.index0 < at.query %}
        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if m.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + said }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA = """
{{- bos_token }}
{%- for m in messages %}
    {%- set role = 'ipython' if m.role == 'tool' else m.role %}
    {{- '<|start|>' + role + '<|end|>\\n\\n' }}
    {%- if role == 'ipython' %}{{ m.content | tojson }}
    {%- else %}{{ m.content | trim }}{% endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

GLM = """[gMASK]<sop>
{%- for t in tools or [] %}{{ t | tojson(ensure_ascii=False) }}{% endfor %}
{%- set at = namespace(query=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set at.query = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set parts = m.content.split('</think>') %}
        {{- '<|assistant|>\\n<think>' }}
        {%- if parts | length > 1 and loop.index0 > at.query %}
            {{- parts[0].split('<think>')[-1].strip() }}
        {%- endif %}
        {{- '</think>\\n' + parts[-1].strip() }}
    {%- elif m.role == 'tool' %}
        {{- '<|observation|>\\n<tool_response>\\n' + m.content }}
        {{- '\\n</tool_response>' }}
    {%- else %}
        {{- '<|' + m.role + '|>\\n' + m.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

QWEN_TOKENS = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
LLAMA_TOKENS = ('<|bos|>', '<|start|>', '<|end|>', '<|eot|>', '<|eom|>')
GLM_TOKENS = (
    '<|endoftext|>', '[gMASK]', '<sop>', '<|system|>', '<|user|>',
    '<|assistant|>', '<|observation|>',
)


def letters(special: tuple[str, ...]) -> tokenizers.Tokenizer:
  """One token per symbol, and the special tokens from id 0."""
  symbols = [*special, *map(chr, range(32, 127)), '\n', 'é']
  made = tokenizers.Tokenizer(
      models.WordLevel({s: i for i, s in enumerate(symbols)}, unk_token='?')
  )
  made.pre_tokenizer = pre_tokenizers.Split(
      tokenizers.Regex('.|\\n'), behavior='isolated'
  )
  made.decoder = decoders.Fuse()
  made.add_special_tokens(list(special))
  return made


class FamiliesTest(parameterized.TestCase):

  def talk(self, template, special, tools=()):
    self.tokenizer = tokenizer.Tokenizer(letters(special))
    made = chat.ChatTemplate(template, {'bos_token': '<|bos|>'}, tools)
    return chat.Conversation(made, self.tokenizer)

  def say(self, talk, text) -> np.ndarray:
    talk.reply(text)
    return self.tokenizer.encode(text, follows=True)

  def read(self, *parts) -> str:
    return self.tokenizer.decode(np.concatenate(parts))

  def test_qwen_keeps_the_reasoning_of_a_chain_of_tool_calls(self):
    talk = self.talk(QWEN, QWEN_TOKENS)
    stream = self.read(
        talk.open([Message('user', 'q')]),
        self.say(talk, '<think>\na\n</think>\n\ncall<|im_end|>'),
        talk.add([Message('tool', '7')], ask=True),
        self.say(talk, '<think>\nb\n</think>\n\n7<|im_end|>'),
    )
    self.assertEqual(
        stream,
        '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n'
        '<think>\na\n</think>\n\ncall<|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n'
        '<|im_start|>assistant\n<think>\nb\n</think>\n\n7<|im_end|>',
    )

  def test_K04_qwen_drops_the_reasoning_before_a_new_question(self):
    talk = self.talk(QWEN, QWEN_TOKENS)
    talk.open([Message('user', 'q')])
    talk.reply('<think>\na\n</think>\n\n7<|im_end|>')
    with self.assertRaises(chat.HistoryRewritten):
      talk.add([Message('user', 'w')], ask=True)
    # The window that follows shows the answer without its reasoning.
    again = talk.open([*talk.messages, Message('user', 'w')])
    self.assertEqual(
        self.read(again),
        '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n7<|im_end|>\n'
        '<|im_start|>user\nw<|im_end|>\n<|im_start|>assistant\n',
    )

  @parameterized.parameters('<|endoftext|>', '')
  def test_qwen_another_end_than_the_templates_stays_in_the_stream(self, end):
    talk = self.talk(QWEN, QWEN_TOKENS)
    stream = self.read(
        talk.open([Message('user', 'q')]),
        self.say(talk, 'a' + end),
        talk.add([Message('user', 'w')], ask=True),
    )
    self.assertEndsWith(
        stream, f'a{end}<|im_end|>\n<|im_start|>user\nw<|im_end|>\n'
        '<|im_start|>assistant\n',
    )

  def test_tools_are_written_as_plain_json(self):
    tools = [{'name': 'naïve', 'note': "1 < 2 & 'x'"}]
    template = chat.ChatTemplate(QWEN)
    self.assertIs(template.with_tools(()), template)
    ask = [Message('user', 'q')]
    shown = template.with_tools(tools).render(ask, ask=False)
    # jinja2's own filter would write \\u003c for <.
    self.assertIn('<tools>\n' + json.dumps(tools[0], ensure_ascii=False), shown)
    self.assertNotIn('<tools>', template.render(ask, ask=False))
    glm = chat.ChatTemplate(GLM, {}, tools)
    self.assertIn("1 < 2 & 'x'", glm.render(ask, ask=False))

  def test_a_template_that_shows_no_tools_is_refused_some(self):
    template = chat.ChatTemplate('{{ messages[0].content }}')
    with self.assertRaisesRegex(ValueError, 'does not read `tools`'):
      template.with_tools([{'name': 'f'}])

  def test_llama_streams_json_results_and_a_call_ended_by_eom(self):
    talk = self.talk(LLAMA, LLAMA_TOKENS)
    stream = self.read(
        talk.open([Message('user', ' q ')]),
        self.say(talk, '{"name": "f"}<|eom|>'),
        talk.add([Message('tool', 'é"')], ask=True),
        self.say(talk, 'x<|eot|>'),
        talk.add([Message('user', 'w')], ask=True),
    )
    self.assertEqual(
        stream,
        '<|bos|><|start|>user<|end|>\n\nq<|eot|><|start|>assistant<|end|>\n\n'
        '{"name": "f"}<|eom|><|eot|>'
        '<|start|>ipython<|end|>\n\n"é\\""<|eot|><|start|>assistant<|end|>\n\n'
        'x<|eot|><|start|>user<|end|>\n\nw<|eot|><|start|>assistant<|end|>\n\n',
    )

  def test_K04_llama_trims_a_reply(self):
    talk = self.talk(LLAMA, LLAMA_TOKENS)
    talk.open([Message('user', 'q')])
    talk.reply('x <|eot|>')
    with self.assertRaises(chat.HistoryRewritten):
      talk.add([Message('user', 'w')], ask=True)

  def test_no_bos_token_writes_none(self):
    shown = chat.ChatTemplate(LLAMA).render([Message('user', 'q')], ask=True)
    self.assertStartsWith(shown, '<|start|>')

  def test_glm_a_sampled_header_opens_the_next_turn_once(self):
    talk = self.talk(GLM, GLM_TOKENS)
    stream = self.read(
        talk.open([Message('user', 'q')]),
        self.say(talk, '\n<think>a</think>\ncall<|observation|>'),
        talk.add([], ask=False),
        talk.add([Message('tool', '7')], ask=True),
        self.say(talk, '\n<think>b</think>\n7<|user|>'),
    )
    self.assertEqual(
        stream,
        '[gMASK]<sop><|user|>\nq<|assistant|>\n<think>a</think>\ncall'
        '<|observation|>\n<tool_response>\n7\n</tool_response><|assistant|>'
        '\n<think>b</think>\n7<|user|>',
    )
    self.assertEqual(talk.messages[1].content, '\n<think>a</think>\ncall')

  def test_glm_another_header_than_the_sampled_one_follows_it(self):
    talk = self.talk(GLM, GLM_TOKENS)
    stream = self.read(
        talk.open([Message('user', 'q')]),
        self.say(talk, '\n<think></think>\ncall<|user|>'),
        talk.preview([Message('tool', '7')], ask=True),
    )
    self.assertEndsWith(
        stream,
        'call<|user|><|observation|>\n<tool_response>\n7\n</tool_response>'
        '<|assistant|>',
    )
    added = talk.add([Message('tool', '7')], ask=True)
    self.assertStartsWith(self.read(added), '<|observation|>')
    more = self.say(talk, '\n<think></think>\n7<|endoftext|>')
    more = self.read(more, talk.add([Message('tool', '8')], ask=False))
    self.assertEndsWith(
        more, '7<|endoftext|><|observation|>\n<tool_response>\n8\n'
        '</tool_response>',
    )

  def test_the_end_of_a_turn_is_found_whatever_it_is_called(self):
    # The letters of the probe must not be looked for in the end token.
    template = (
        "{% for m in messages %}{{ m.content + '<|endoftext|>' }}{% endfor %}"
    )
    talk = self.talk(template, QWEN_TOKENS)
    talk.open([Message('user', 'q')])
    talk.reply('a<|endoftext|>')
    self.assertEqual(talk.messages[1].content, 'a')


class SentencePieceTest(absltest.TestCase):
  """A tokenizer that puts a space before a text, as Llama 2's does."""

  def made(self, **parts) -> tokenizer.Tokenizer:
    pieces = ['<unk>', '<s>', '▁', 'a', 'b', '\n', '▁a', '▁b', 'ab']
    made = tokenizers.Tokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)},
            [('▁', 'a'), ('▁', 'b'), ('a', 'b')],
            unk_token='<unk>',
        )
    )
    made.add_special_tokens(['<s>'])
    for name, part in parts.items():
      setattr(made, name, part)
    return tokenizer.Tokenizer(made)

  def both(self):
    """The older form, with steps, and the newer one."""
    n, d = tokenizers.normalizers, tokenizers.decoders
    yield self.made(
        normalizer=n.Sequence([n.Prepend('▁'), n.Replace(' ', '▁')]),
        decoder=d.Sequence(
            [d.Replace('▁', ' '), d.Fuse(), d.Strip(' ', 1, 0)]
        ),
    )
    yield self.made(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme='always'),
        decoder=d.Metaspace(prepend_scheme='always'),
    )

  def test_R4_only_the_first_piece_of_a_stream_gets_the_space(self):
    for made in self.both():
      np.testing.assert_array_equal(made.encode('a b'), [6, 7])
      np.testing.assert_array_equal(made.encode('a b', follows=True), [3, 7])
      # '▁a', '\n', 'b': the same text however it is cut.
      self.assertEqual(made.decode([6, 5, 4]), ' a\nb')
      self.assertEqual(made.decode([6]) + made.decode([5, 4]), ' a\nb')
      self.assertEqual(made.token_id('\n'), 5)

  def test_R4_a_conversation_gains_no_spaces(self):
    for made in self.both():
      plain = '{% for m in messages %}{{ m.content }}{% endfor %}'
      talk = chat.Conversation(chat.ChatTemplate(plain), made)
      np.testing.assert_array_equal(talk.open([Message('user', 'a')]), [6])
      talk.reply(made.decode([7]))
      added = talk.add([Message('user', '\na')], ask=True)
      np.testing.assert_array_equal(added, [5, 3])

  def test_R4_a_byte_level_tokenizer_may_add_the_space_too(self):
    backend = tokenizers.Tokenizer(models.BPE({'a': 0, '\u0120': 1}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    made = tokenizer.Tokenizer(backend)
    np.testing.assert_array_equal(made.encode('a'), [1, 0])
    np.testing.assert_array_equal(made.encode('a', follows=True), [0])
    self.assertEqual(made.decode([1, 0]), ' a')

  def test_other_tokenizers_are_left_as_they_are(self):
    made = tokenizer.Tokenizer(letters(QWEN_TOKENS))
    np.testing.assert_array_equal(
        made.encode('a b'), made.encode('a b', follows=True)
    )
    self.assertEqual(made.decode(made.encode(' a b')), ' a b')


class EndTokensTest(parameterized.TestCase):

  def folder(self, **files) -> str:
    folder = self.create_tempdir().full_path
    letters(LLAMA_TOKENS).save(f'{folder}/tokenizer.json')
    for name, content in files.items():
      path = pathlib.Path(folder) / f'{name}.json'
      path.write_text(json.dumps(content), encoding='utf-8')
    return folder

  @parameterized.parameters(
      ({'generation_config': {'eos_token_id': [3, 4, 3]}}, (3, 4)),
      ({'generation_config': {'eos_token_id': 4}}, (4,)),
      ({'generation_config': {}, 'config': {'eos_token_id': [3, 0]}}, (3, 0)),
      (
          {
              'generation_config': {'eos_token_id': [3, 4]},
              'config': {'eos_token_id': 0},
              'tokenizer_config': {'eos_token': '<|bos|>'},
          },
          (3, 4),
      ),
      ({'tokenizer_config': {'eos_token': {'content': '<|eot|>'}}}, (3,)),
      ({'special_tokens_map': {'eos_token': '<|eot|>'}}, (3,)),
      (
          {
              'special_tokens_map': {'eos_token': '<|eot|>'},
              'tokenizer_config': {'eos_token': '<|eom|>'},
          },
          (4,),
      ),
      ({'config': {'eos_token_id': None}}, ()),
      ({}, ()),
  )
  def test_K19_stop_ids_come_from_the_folder(self, files, expected):
    made = tokenizer.Tokenizer.from_folder(self.folder(**files))
    self.assertEqual(made.stop_ids, expected)

  @parameterized.parameters(-1, 5000, '<|eot|>', True)
  def test_K19_an_end_that_is_no_token_is_refused(self, bad):
    folder = self.folder(generation_config={'eos_token_id': [3, bad]})
    with self.assertRaisesRegex(ValueError, 'generation_config.json.*eos'):
      tokenizer.Tokenizer.from_folder(folder)

  def test_a_special_token_that_tokenizer_json_lacks_is_refused(self):
    named = {'3': {'content': '<|eot|>', 'special': True}}
    files = {'tokenizer_config': {'added_tokens_decoder': named}}
    made = tokenizer.Tokenizer.from_folder(self.folder(**files))
    np.testing.assert_array_equal(made.encode('<|eot|>'), [3])
    named['99'] = {'content': '  ', 'special': False}
    tokenizer.Tokenizer.from_folder(self.folder(**files))
    for text_id, text in (('200', '<|tool|>'), ('4', '<|eot|>')):
      named[text_id] = {'content': text, 'special': True}
      with self.assertRaisesRegex(ValueError, f'{text[2:5]}.* id {text_id}'):
        tokenizer.Tokenizer.from_folder(self.folder(**files))
      del named[text_id]

  def test_older_folders_name_special_tokens_in_a_file_of_their_own(self):
    folder = self.folder(
        special_tokens_map={'bos_token': '<|bos|>', 'pad_token': '<|eot|>'},
        tokenizer_config={'chat_template': LLAMA},
    )
    template = chat.ChatTemplate.from_folder(folder)
    self.assertStartsWith(
        template.render([Message('user', 'q')], ask=True), '<|bos|><|start|>'
    )
    self.assertEqual(tokenizer.Tokenizer.from_folder(folder).pad_id, 3)

  def test_K21_pad_is_the_end_token_of_many_models(self):
    # The run of K21: an end token inside and one at the end, both kept.
    both = {'pad_token': '<|eot|>', 'eos_token': '<|eot|>'}
    made = tokenizer.Tokenizer.from_folder(self.folder(tokenizer_config=both))
    self.assertEqual(made.pad_id, made.stop_ids[0])
    self.assertEqual(made.decode([6, 3, 7, 3]), '!<|eot|>"<|eot|>')

  def test_limits_of_the_file_do_not_cut_or_pad_a_text(self):
    backend = letters(QWEN_TOKENS)
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    self.assertLen(tokenizer.Tokenizer(backend).encode('abc'), 3)


if __name__ == '__main__':
  absltest.main()
