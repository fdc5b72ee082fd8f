"""Token streams only grow; a rewritten history is noticed."""

import json
import pathlib

import numpy as np
import tokenizers
from absl.testing import absltest
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from rl_tpu.text import chat
from rl_tpu.text import tokenizer

END = '<|end|>'
CHATML = (
    "{%- for m in messages %}{{ '<' + m['role'] + '>' + m['content']"
    " + '<|end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
# Keeps the first word of earlier replies only: history is rewritten.
FORGETFUL = (
    "{%- for m in messages %}{% if m['role'] == 'assistant' and not loop.last"
    " %}{{ m['content'].split(' ')[-1] }}{% else %}{{ m['content'] }}"
    '{% endif %}{% endfor %}'
)
PLAIN = "{%- for m in messages %}{{ m['content'] }}{% endfor %}"
# Begins with a line's end and spaces, which belong to the text.
THINKING = (
    "\n  {{ messages[0]['content'] }}{{ tools | length if tools }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '</think>' }}{% endif %}{{ date | default('today') }}"
)

Message = chat.Message


def letters() -> tokenizer.Tokenizer:
  """One token per symbol, END among them."""
  symbols = [END, *map(chr, range(32, 127)), '\n']
  made = tokenizers.Tokenizer(
      models.WordLevel({s: i for i, s in enumerate(symbols)}, unk_token='?')
  )
  made.pre_tokenizer = pre_tokenizers.Split(
      tokenizers.Regex('.|\\n'), behavior='isolated'
  )
  made.decoder = decoders.Fuse()
  made.add_special_tokens([END])
  return tokenizer.Tokenizer(made)


class ConversationTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.tokenizer = letters()

  def talk(self, template: str) -> chat.Conversation:
    return chat.Conversation(chat.ChatTemplate(template), self.tokenizer)

  def read(self, ids: np.ndarray) -> str:
    return self.tokenizer.decode(ids)

  def test_K01_every_reply_stays_where_it_was_sampled(self):
    talk = self.talk(CHATML)
    opening = talk.open([Message('system', 'sys'), Message('user', 'u')])
    parts = [('fed', opening)]
    for reply, result in (('one' + END, 'r1'), ('two' + END, 'r2')):
      sampled = self.tokenizer.encode(reply)
      talk.reply(reply)
      parts.append(('sampled', sampled))
      added = talk.add([Message('tool', result)], ask=True)
      parts.append(('fed', added))
    stream = np.concatenate([ids for _, ids in parts])
    mask = np.concatenate([
        np.full(len(ids), kind == 'sampled') for kind, ids in parts
    ])
    self.assertEqual(
        self.read(stream),
        f'<system>sys{END}\n<user>u{END}\n<assistant>one{END}\n<tool>r1{END}\n'
        f'<assistant>two{END}\n<tool>r2{END}\n<assistant>',
    )
    # Role headers are not sampled, the stop tokens are: 'one', 'two' and END
    # twice.
    self.assertEqual(self.read(stream[mask]), f'one{END}two{END}')
    self.assertEqual(mask.sum(), 8)

  def test_the_stream_equals_the_rendered_whole(self):
    template = chat.ChatTemplate(CHATML)
    talk = chat.Conversation(template, self.tokenizer)
    text = self.read(talk.open([Message('user', 'u')]))
    talk.reply('a' + END)
    text += 'a' + END
    text += self.read(talk.add([Message('tool', 'x')], ask=False))
    text += self.read(talk.add([Message('user', 'y')], ask=True))
    whole = [
        Message('user', 'u'),
        Message('assistant', 'a'),
        Message('tool', 'x'),
        Message('user', 'y'),
    ]
    self.assertEqual(text, template.render(whole, ask=True))

  def test_a_reply_without_its_stop_token_is_closed_by_the_template(self):
    # 'cut <' ends with the first character of the closing token's text.
    talk = self.talk(CHATML)
    talk.open([Message('user', 'u')])
    talk.reply('cut <')
    added = talk.add([Message('user', 'v')], ask=False)
    self.assertEqual(self.read(added), f'{END}\n<user>v{END}\n')

  def test_a_template_without_an_end_leaves_the_stop_to_the_content(self):
    talk = self.talk(PLAIN)
    talk.open([Message('user', 'q\n')])
    talk.reply(' a\n')
    added = talk.add([Message('tool', '\nr')], ask=True)
    self.assertEqual(self.read(added), '\nr')

  def test_K05_only_new_text_is_encoded(self):
    # The vocabulary of K05: what was sampled as a, b reads 'ab', and the text
    # that follows is encoded without it.
    backend = tokenizers.Tokenizer(
        models.BPE({'<pad>': 0, 'a': 1, 'b': 2, 'ab': 3}, [('a', 'b')])
    )
    backend.decoder = decoders.Fuse()
    made = tokenizer.Tokenizer(backend)
    talk = chat.Conversation(chat.ChatTemplate(PLAIN), made)
    np.testing.assert_array_equal(talk.open([Message('user', 'b')]), [2])
    talk.reply(made.decode([1, 2]))
    np.testing.assert_array_equal(
        talk.add([Message('user', 'ba')], ask=True), [2, 1]
    )

  def test_K05_a_long_reply_stays_as_long_as_it_was(self):
    talk = self.talk(CHATML)
    talk.open([Message('user', 'u')])
    talk.reply('x' * 511 + END)
    added = talk.add([Message('user', 'v')], ask=True)
    self.assertEqual(self.read(added), f'\n<user>v{END}\n<assistant>')

  def test_K04_a_rewritten_history_is_noticed(self):
    talk = self.talk(FORGETFUL)
    talk.open([Message('user', 'q')])
    talk.reply('think answer')
    with self.assertRaisesRegex(chat.HistoryRewritten, "'think answer'"):
      talk.add([Message('user', 'w')], ask=True)
    with self.assertRaises(ValueError):
      talk.preview([Message('user', 'w')], ask=True)

  def test_K04_a_new_window_opens_on_the_rewritten_history(self):
    talk = self.talk(FORGETFUL)
    talk.open([Message('user', 'q')])
    talk.reply('think answer')
    following = [*talk.messages, Message('user', 'w')]
    self.assertEqual(self.read(talk.open(following)), 'qanswerw')
    talk.reply('last')
    np.testing.assert_array_equal(talk.add([], ask=False), [])

  def test_K04_an_unchanged_history_is_one_stream(self):
    talk = self.talk(FORGETFUL)
    talk.open([Message('user', 'q')])
    talk.reply('short')
    added = talk.add([Message('user', 'w')], ask=True)
    self.assertEqual(self.read(added), 'w')

  def test_preview_changes_nothing(self):
    talk = self.talk(CHATML)
    talk.open([Message('user', 'u')])
    talk.reply('a' + END)
    first = talk.preview([Message('user', 'long request')], ask=True)
    self.assertLen(talk.messages, 2)
    added = talk.add([Message('user', 'b')], ask=True)
    self.assertEqual(self.read(added), f'\n<user>b{END}\n<assistant>')
    self.assertIn('long request', self.read(first))


class ChatTemplateTest(absltest.TestCase):

  def folder(self, **files: str) -> str:
    folder = self.create_tempdir().full_path
    for name, text in files.items():
      path = pathlib.Path(folder) / name.replace('__', '.')
      path.write_text(text, encoding='utf-8')
    return folder

  def test_reads_the_file_or_the_config(self):
    config = json.dumps({'chat_template': PLAIN})
    named = json.dumps({
        'chat_template': [
            {'name': 'tool_use', 'template': 'x'},
            {'name': 'default', 'template': PLAIN},
        ]
    })
    for folder in (
        self.folder(chat_template__jinja=PLAIN),
        self.folder(tokenizer_config__json=config),
        self.folder(tokenizer_config__json=named),
    ):
      template = chat.ChatTemplate.from_folder(folder)
      text = template.render([Message('user', 'hello')], ask=True)
      self.assertEqual(text, 'hello')

  def test_a_file_takes_the_place_of_the_folders_template(self):
    folder = self.folder(
        chat_template__jinja='of the folder',
        tokenizer_config__json=json.dumps({'bos_token': '<s>'}),
    )
    file = self.create_tempfile(content='{{ bos_token }}of the file')
    template = chat.ChatTemplate.from_folder(folder, file=file.full_path)
    text = template.render([Message('user', 'hello')], ask=True)
    self.assertEqual(text, '<s>of the file')

  def test_a_folder_without_a_template_is_named(self):
    folder = self.folder(tokenizer_config__json='{}')
    with self.assertRaisesRegex(ValueError, 'no chat template'):
      chat.ChatTemplate.from_folder(folder)

  def test_special_tokens_reach_the_template(self):
    folder = self.folder(
        chat_template__jinja='{{ bos_token }}{{ messages[0].content }}',
        tokenizer_config__json=json.dumps({'bos_token': {'content': '<s>'}}),
    )
    template = chat.ChatTemplate.from_folder(folder)
    self.assertEqual(template.render([Message('user', 'x')], ask=False), '<s>x')

  def test_variables_reach_the_template_and_its_hash(self):
    ask = [Message('user', 'q')]
    template = lambda **given: chat.ChatTemplate(THINKING, variables=given)
    render = lambda **given: template(**given).render(ask, ask=True)
    self.assertEqual(render(), '\n  qtoday')
    self.assertEqual(render(enable_thinking=True), '\n  qtoday')
    self.assertEqual(render(enable_thinking=False), '\n  q</think>today')
    self.assertEqual(render(date=7), '\n  q7')
    shown = template(date=7).with_tools([{'name': 'f'}]).render(ask, ask=True)
    self.assertEqual(shown, '\n  q17')
    hashes = [template().hash, template(date=7).hash, template(date=8).hash]
    self.assertLen(set(hashes), 3)
    folder = self.folder(chat_template__jinja=THINKING)
    found = chat.ChatTemplate.from_folder(folder, variables={'date': 7})
    self.assertEqual(found.hash, hashes[1])

  def test_a_variable_that_the_template_does_not_read_is_refused(self):
    for text, variables, line in (
        (THINKING, {'enable_thinkin': False}, 'model.template_variables.enable_'
         'thinkin = False: .* not read it; it reads date, enable_thinking.$'),
        (PLAIN, {'date': 'x'}, "date = 'x': .* it reads no variable.$"),
        (PLAIN, {'messages': []}, 'the run itself gives .* messages'),
        (PLAIN, {'eos_token': 'x'}, 'the run itself gives .* eos_token'),
    ):
      with self.assertRaisesRegex(ValueError, line):
        chat.ChatTemplate(text, variables=variables)

  def test_the_text_has_the_values_as_defaults(self):
    ask = [Message('user', 'q')]
    text = THINKING + '{{ other | tojson }}{{ more }}'
    given = {
        'enable_thinking': False,
        'date': 'é\n"{{ x }}" \'%}\\',
        'other': [1.5, None, {'a': True, 'b': -2}],
    }
    made = chat.ChatTemplate(text, variables=given)
    again = chat.ChatTemplate(made.text)
    self.assertEqual(again.render(ask, ask=True), made.render(ask, ask=True))
    # They are defaults only, and a name without one stays without.
    changed = given | {'date': 5, 'more': '!'}
    self.assertEqual(
        chat.ChatTemplate(
            made.text, variables={'date': 5, 'more': '!'}
        ).render(ask, ask=True),
        chat.ChatTemplate(text, variables=changed).render(ask, ask=True),
    )
    self.assertEqual(chat.ChatTemplate(THINKING).text, THINKING)

  def test_the_generation_tag_is_understood(self):
    text = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}"
        "{% generation %}{{ m['content'] }}{% endgeneration %}"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    )
    template = chat.ChatTemplate(text)
    messages = [Message('user', 'u'), Message('assistant', 'a')]
    self.assertEqual(template.render(messages, ask=False), 'ua')

  def test_a_refusal_of_the_template_is_a_value_error(self):
    template = chat.ChatTemplate("{{ raise_exception('roles alternate') }}")
    with self.assertRaisesRegex(ValueError, 'roles alternate'):
      template.render([Message('user', 'x')], ask=False)

  def test_templates_cannot_reach_python(self):
    template = chat.ChatTemplate("{{ messages.__class__.__mro__ }}")
    with self.assertRaisesRegex(ValueError, 'unsafe'):
      template.render([Message('user', 'x')], ask=False)

  def test_R5_hash_follows_text_and_special_tokens(self):
    plain = chat.ChatTemplate(PLAIN).hash
    marked = chat.ChatTemplate(PLAIN, {'bos_token': 's'}).hash
    self.assertEqual(plain, chat.ChatTemplate(PLAIN).hash)
    self.assertLen({plain, marked, chat.ChatTemplate(CHATML).hash}, 3)


if __name__ == '__main__':
  absltest.main()
