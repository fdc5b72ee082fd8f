"""L19: calls, reasoning and token types of replies in three formats."""

import json

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import given
from hypothesis import strategies as st

from rl_tpu.text import tool_calls
from rl_tpu.types import token_types

# Short names of the token types, to draw them under a reply.
SHORT = {
    't': 'text', 's': 'structure', 'n': 'tool_name', 'k': 'arg_key',
    'v': 'arg_value', '.': 'stop',
}

QWEN = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n'
    '</tool_call>'
)
LLAMA = '{"name": "add", "parameters": {"a": 1, "b": [2]}}'
GLM = (
    '<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n'
    '<arg_key>b</arg_key>\n<arg_value>[2]</arg_value>\n</tool_call>'
)
ADD = ('add', {'a': 1, 'b': [2]}, '')


class Pieces:
  """A tokenizer whose ids are places in a list of byte strings."""

  def __init__(self, pieces):
    self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]

  def decode(self, ids) -> str:
    return b''.join(self.pieces[i] for i in ids).decode(errors='replace')


def parse(pieces, name, stop=False):
  tokenizer = Pieces(pieces)
  ids = np.arange(len(tokenizer.pieces))
  return tool_calls.parse(ids, tokenizer, name, ids[-1:] if stop else ())


def made(reply):
  return [(c.name, c.arguments, c.error) for c in reply.calls]


def types(reply):
  return [token_types.NAMES[k] for k in reply.token_type]


class ParseTest(parameterized.TestCase):

  def check(self, drawn, name, stop=True):
    """A list of (token, short type), the last one a stop token."""
    reply = parse([piece for piece, _ in drawn], name, stop)
    self.assertEqual(
        [f'{p!r} {k}' for (p, _), k in zip(drawn, types(reply))],
        [f'{p!r} {SHORT[k]}' for p, k in drawn],
    )
    return reply

  def test_L19_qwen_types_and_spans(self):
    reply = self.check(
        [
            ('Let', 't'), (' me.', 't'),
            ('<tool_call>', 's'), ('\n', 's'), ('{"', 's'), ('name', 's'),
            ('":', 's'), (' "', 's'), ('get', 'n'), ('_x', 'n'), ('",', 's'),
            (' "arguments": {"', 's'), ('ci', 'k'), ('ty', 'k'), ('":', 's'),
            (' "', 's'), ('Bonn', 'v'), ('",', 's'), (' "', 's'), ('n', 'k'),
            ('":', 's'), (' ', 's'), ('[1, {"a": 2}]', 'v'), ('}}', 's'),
            ('\n', 's'), ('</tool_call>', 's'), ('<|im_end|>', '.'),
        ],
        'qwen',
    )
    (call,) = reply.calls
    self.assertEqual(call.name, 'get_x')
    self.assertEqual(call.arguments, {'city': 'Bonn', 'n': [1, {'a': 2}]})
    self.assertEqual((call.start, call.stop), (2, 26))
    self.assertEqual(reply.content, 'Let me.')

  def test_L19_llama_types_and_spans(self):
    reply = self.check(
        [
            ('<|python_tag|>', 's'), ('{"name', 's'), ('": "', 's'), ('f', 'n'),
            ('", "parameters', 's'), ('": {"', 's'), ('x', 'k'), ('": ', 's'),
            ('-1', 'v'), ('}}', 's'), ('<|eom_id|>', '.'),
        ],
        'llama3',
    )
    self.assertEqual(made(reply), [('f', {'x': -1}, '')])
    self.assertEqual((reply.calls[0].start, reply.calls[0].stop), (0, 10))
    self.assertEqual(reply.content, '')

  def test_L19_glm_types_and_spans(self):
    reply = self.check(
        [
            ('\n', 't'), ('<think>', 's'), ('hm', 't'), ('</think>', 's'),
            ('\n', 't'), ('<tool_call>', 's'), ('get', 'n'), ('_x', 'n'),
            ('\n', 's'), ('<arg_key>', 's'), ('city', 'k'), ('</arg_key>', 's'),
            ('\n', 's'), ('<arg_value>', 's'), ('New', 'v'), (' York', 'v'),
            ('</arg_value>', 's'), ('\n', 's'), ('</tool_call>', 's'),
            ('<|observation|>', '.'),
        ],
        'glm',
    )
    self.assertEqual(made(reply), [('get_x', {'city': 'New York'}, '')])
    self.assertEqual((reply.calls[0].start, reply.calls[0].stop), (5, 19))
    self.assertEqual(reply.reasoning, ((1, 4),))
    self.assertEqual(reply.content, '\n\n')

  def test_L19_marks_that_straddle_tokens(self):
    reply = self.check(
        [
            ('ok', 't'), ('. <to', 't'), ('ol_', 's'), ('call>{"na', 's'),
            ('me":"f","arguments":{}', 's'), ('}</tool', 's'),
            ('_call> done', 's'), ('!', 't'),
        ],
        'qwen',
        stop=False,
    )
    # Tokens 1 and 6 hold some of the call and some prose.
    self.assertEqual((reply.calls[0].start, reply.calls[0].stop), (1, 7))
    self.assertEqual(made(reply), [('f', {}, '')])
    self.assertEqual(reply.content, 'ok.  done!')

  def test_L19_letters_made_of_several_tokens(self):
    whole = QWEN.replace('add', 'zé').encode()
    cut = whole.index('é'.encode()) + 1
    reply = parse([whole[:cut], whole[cut:]], 'qwen')
    self.assertEqual(made(reply)[0][0], 'zé')
    self.assertEqual((reply.calls[0].start, reply.calls[0].stop), (0, 2))
    letters = [whole[i : i + 1] for i in range(len(whole))]
    reply = parse(letters, 'qwen')
    names = [i for i, k in enumerate(types(reply)) if k == 'tool_name']
    self.assertEqual(names, [cut - 2, cut - 1, cut])

  @parameterized.parameters(
      ('qwen', QWEN + '\n' + QWEN, [ADD, ADD]),
      ('qwen', QWEN.replace('\n', ''), [ADD]),
      ('qwen', QWEN.replace('arguments', 'parameters'), [ADD]),
      ('llama3', LLAMA, [ADD]),
      ('llama3', ' \n' + LLAMA + '; ' + LLAMA, [ADD, ADD]),
      ('llama3', 'I call.<|python_tag|>' + LLAMA + LLAMA, [ADD, ADD]),
      ('llama3', LLAMA.replace('{"na', '{"type": "function", "na'), [ADD]),
      ('glm', GLM + GLM, [ADD, ADD]),
      ('glm', GLM.replace('\n', ''), [ADD]),
      ('glm', '<tool_call>now\n</tool_call>', [('now', {}, '')]),
  )
  def test_several_calls_and_spellings(self, name, text, expected):
    self.assertEqual(made(parse([text], name)), expected)

  def test_an_argument_may_hold_a_closing_mark(self):
    code = 'print("</tool_call>")<tool_call>'
    body = json.dumps({'name': 'run', 'arguments': {'code': code}})
    text = f'<tool_call>{body}</tool_call>after'
    reply = parse([text], 'qwen')
    self.assertEqual(made(reply), [('run', {'code': code}, '')])
    self.assertEqual(reply.content, 'after')

  def test_a_malformed_call_ends_where_its_json_has_ended(self):
    code = {'code': '</tool_call><tool_call>'}
    body = json.dumps({'name': 'run', 'arguments': code})
    reply = parse([f'<tool_call>{body} and</tool_call>after'], 'qwen')
    self.assertLen(reply.calls, 1)
    self.assertRegex(reply.calls[0].error, '</tool_call> expected')
    self.assertEqual(reply.content, 'after')
    # What is inside of an object is not a call of its own.
    reply = parse([f'<|python_tag|>{{"x": {LLAMA}}}; {LLAMA}'], 'llama3')
    self.assertEqual([c[0] for c in made(reply)], ['', 'add'])

  @parameterized.parameters(
      ('5', 5), ('true', True), ('null', None), ('"x"', 'x'), ('x', 'x'),
      (' 5 ', 5), (' a\n', ' a\n'), ('{"a": [1]}', {'a': [1]}), ('', ''),
      ('1e999', '1e999'), ('NaN', 'NaN'), ('5 6', '5 6'),
  )
  def test_glm_values_are_json_or_text(self, value, expected):
    text = GLM.replace('[2]', value)
    self.assertEqual(made(parse([text], 'glm'))[0][1], {'a': 1, 'b': expected})

  @parameterized.parameters(
      ('qwen', '<tool_call>{"name": "f", "arguments": {}', ', expected'),
      ('qwen', '<tool_call>{"name": "f", "arguments": {}}', '</tool_call>'),
      ('qwen', '<tool_call>{"name": "f"}</tool_call>', 'arguments'),
      ('qwen', '<tool_call>{"arguments": {}}</tool_call>', 'name'),
      ('qwen', '<tool_call>{"name": 3, "arguments": {}}</tool_call>', 'name'),
      ('qwen', '<tool_call>{"name": "", "arguments": {}}</tool_call>', 'empty'),
      ('qwen', '<tool_call>{"name": "f", "arguments": "x"}</tool_call>', 'one'),
      (
          'qwen',
          '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}'
          '</tool_call>',
          'one object',
      ),
      (
          'qwen',
          '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
          'twice',
      ),
      (
          'qwen',
          '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>',
          'twice',
      ),
      (
          'qwen',
          '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
          'NaN',
      ),
      ('qwen', '<tool_call>' + '[' * 9000 + '</tool_call>', 'JSON object'),
      (
          'qwen',
          '<tool_call>{"name": "f", "arguments": {"a": '
          + '[' * 9000 + '</tool_call>',
          'recursion',
      ),
      ('qwen', '<tool_call>f(1)</tool_call>', 'not a JSON object'),
      ('qwen', '<tool_call></tool_call>', 'not a JSON object'),
      ('qwen', '<tool_call>', '{ expected'),
      ('llama3', '<|python_tag|>search.call(query="x")', 'not a JSON'),
      ('llama3', '<|python_tag|>;', "';' found"),
      ('llama3', '{"name": "f", "parameters": {"a"', 'not a JSON'),
      ('llama3', '{"name": "f"}', 'parameters|arguments'),
      ('glm', '<tool_call></tool_call>', 'begin with a name'),
      ('glm', '<tool_call>f\n<arg_key>a</arg_key></tool_call>', '<arg_value>'),
      ('glm', '<tool_call>f\n<arg_key>a', 'not closed'),
      ('glm', '<tool_call>f<arg_key>a</arg_key><arg_value>1', 'not closed'),
      ('glm', '<tool_call>f g</tool_call>', 'name'),
      ('glm', GLM.replace('>b<', '>a<'), 'twice'),
      ('glm', GLM.replace('</tool_call>', ''), '<arg_key>'),
  )
  def test_a_malformed_call_is_reported(self, name, text, error):
    whole = {'qwen': QWEN, 'llama3': LLAMA, 'glm': GLM}[name]
    for rest, after in (('', []), ('\n' + whole, [ADD])):
      reply = parse([text + rest], name)
      first = reply.calls[0]
      self.assertEqual((first.name, first.arguments), ('', {}))
      self.assertRegex(first.error, error)
      # A whole call after it is not lost.
      self.assertEqual(made(reply)[1:], after)

  def test_a_malformed_call_spans_its_tokens(self):
    reply = parse(
        ['so ', '<tool_call>', '{"name', '}', '</tool_call>', ' and'], 'qwen'
    )
    self.assertEqual((reply.calls[0].start, reply.calls[0].stop), (1, 5))
    self.assertEqual(
        types(reply),
        ['text', 'structure', 'text', 'text', 'structure', 'text'],
    )
    self.assertEqual(reply.content, 'so  and')

  @parameterized.parameters(
      ('llama3', '{"answer": 3}'),
      ('llama3', 'The set {"name"} is small.'),
      ('llama3', LLAMA.replace('{"name', 'It is {"name')),
      ('qwen', LLAMA),
      ('qwen', 'text </tool_call> more'),
      ('glm', '<arg_key>a</arg_key>'),
      ('glm', ''),
  )
  def test_what_is_no_call_is_said(self, name, text):
    reply = parse([text], name)
    self.assertEqual((reply.calls, reply.content), ((), text))
    self.assertEqual(set(types(reply)), {'text'})

  @parameterized.parameters('qwen', 'llama3', 'glm')
  def test_calls_are_not_looked_for_in_reasoning(self, name):
    call = {'qwen': QWEN, 'llama3': LLAMA, 'glm': GLM}[name]
    reply = parse(['\n', '<think>', call, '</think>', call], name)
    self.assertEqual(made(reply), [ADD])
    self.assertEqual((reply.calls[0].start, reply.calls[0].stop), (4, 5))
    self.assertEqual(reply.reasoning, ((1, 4),))
    # The prompt has opened the block already.
    reply = parse([call, '</think>', call], name)
    self.assertEqual(made(reply), [ADD])
    self.assertEqual(reply.reasoning, ((0, 2),))
    # The reply ends within the block.
    reply = parse(['<think>', call], name)
    self.assertEqual((reply.calls, reply.reasoning), ((), ((0, 2),)))
    self.assertEqual(reply.content, '')

  def test_only_the_last_token_can_be_the_stop(self):
    reply = parse(['a', '<|im_end|>'], 'qwen', stop=True)
    self.assertEqual(types(reply), ['text', 'stop'])
    self.assertEqual(reply.content, 'a')
    self.assertEqual(parse([], 'qwen').calls, ())
    alone = parse(['<|im_end|>'], 'qwen', stop=True)
    self.assertEqual((types(alone), alone.content), (['stop'], ''))

  def test_an_unknown_format_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'hermes'.*qwen, llama3, glm"):
      parse(['a'], 'hermes')

  @given(st.data(), st.sampled_from(['qwen', 'llama3', 'glm']))
  def test_L19_spans_do_not_depend_on_how_the_text_is_cut(self, data, name):
    call = {'qwen': QWEN, 'llama3': LLAMA, 'glm': GLM}[name]
    text = {
        'qwen': f'<think>é</think>so {call} and {call}',
        'llama3': f'<think>é</think>so <|python_tag|>{call};{call}',
        'glm': f'<think>é</think>so {call} and {call}',
    }[name]
    places = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    edges = [0, *places, len(text)]
    reply = parse([text[a:b] for a, b in zip(edges, edges[1:])], name)
    self.assertEqual(made(reply), [ADD, ADD])
    one = text.index('<|python_tag|>' if name == 'llama3' else call)
    two = text.rindex(call)
    whole = [(one, text.index(call) + len(call)), (two, two + len(call))]
    for found, (start, stop) in zip(reply.calls, whole):
      touching = [
          i
          for i, (a, b) in enumerate(zip(edges, edges[1:]))
          if a < stop and b > start
      ]
      self.assertEqual(range(found.start, found.stop), range(
          touching[0], touching[-1] + 1
      ))

  @given(
      st.sampled_from(['qwen', 'llama3', 'glm']),
      st.lists(
          st.sampled_from([
              '<tool_call>', '</tool_call>', '<think>', '</think>', '{', '}',
              '"name"', '"arguments"', ':', ',', '"f"', '<arg_key>', '[',
              '</arg_key>', '<arg_value>', '</arg_value>', '<|python_tag|>',
              ';', '\n', 'x', '\\', '"', b'\xc3', b'\xa9', b'\xff',
          ]),
          max_size=30,
      ),
  )
  def test_anything_can_be_parsed(self, name, pieces):
    reply = parse(pieces, name)
    self.assertLen(reply.token_type, len(pieces))
    ends = 0
    for call in reply.calls:
      self.assertLess(call.start, call.stop)
      self.assertLessEqual(call.stop, len(pieces))
      self.assertLessEqual(ends, call.start + 1)
      ends = call.stop
      self.assertEqual(bool(call.error), not call.name)

  @parameterized.parameters('qwen', 'llama3', 'glm')
  def test_calls_of_a_beginning_are_calls_of_the_reply(self, name):
    call = {'qwen': QWEN, 'llama3': LLAMA, 'glm': GLM}[name]
    between = {'qwen': ' then ', 'llama3': '; ', 'glm': '\n'}[name]
    text = call + between + call
    seen = 0
    for length in range(len(text) + 1):
      reply = parse(list(text[:length]), name)
      whole = [c for c in reply.calls if not c.error]
      self.assertGreaterEqual(len(whole), seen)
      seen = len(whole)
      if seen:
        self.assertEqual((whole[0].start, whole[0].stop), (0, len(call)))
      self.assertEqual(seen, (length >= len(call)) + (length == len(text)))


if __name__ == '__main__':
  absltest.main()
