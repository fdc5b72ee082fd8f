"""Members of a row's messages are shown, or the row is refused (K49)."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.tasks import row_messages
from rl_tpu.tasks import row_values
from rl_tpu.text import chat

USER = {'role': 'user', 'content': 'what is 2 + 3?'}
CALL = {'id': 'a', 'function': {'name': 'add', 'arguments': '{"x": 2, "y": 3}'}}
# The shape of templates that know calls and reasoning.
TEMPLATE = (
    '{% for m in messages %}[{{ m.role }}'
    '{% if m.name %} {{ m.name }}{% endif %}'
    '{% if m.tool_call_id %} to {{ m.tool_call_id }}{% endif %}'
    '{% if m.reasoning_content %} thinks {{ m.reasoning_content }}{% endif %}'
    '] {{ m.content }}{% for c in m.tool_calls or [] %}'
    '{{ c.function.name }}({{ c.function.arguments | tojson }})'
    "{% endfor %}{{ '\\n' }}{% endfor %}"
)


class RowMessagesTest(parameterized.TestCase):

  def test_K49_a_prompt_shows_calls_reasoning_and_names(self):
    given = [
        USER,
        {
            'role': 'assistant', 'content': '', 'reasoning_content': 'hm',
            'tool_calls': [CALL],
        },
        {
            'role': 'tool', 'content': '5', 'tool_call_id': 'a', 'name': 'add',
        },
    ]
    messages = [chat.Message.of(m) for m in row_messages.read(given)]
    text = chat.ChatTemplate(TEMPLATE).render(messages, ask=True)
    self.assertEqual(
        text,
        '[user] what is 2 + 3?\n'
        '[assistant thinks hm] add({"x": 2, "y": 3})\n'
        '[tool add to a] 5\n',
    )

  def test_K49_messages_that_differ_in_a_call_alone_are_rendered_apart(self):
    template = chat.ChatTemplate(TEMPLATE)
    texts = {
        template.render(
            [chat.Message('assistant', '', tool_calls=(
                {'function': {'name': name, 'arguments': {}}},
            ))],
            ask=False,
        )
        for name in ('f', 'g')
    }
    self.assertLen(texts, 2)

  @parameterized.parameters(
      ([USER | {'audio': 'x'}], "message 1 .*'audio', which no prompt shows"),
      ([USER | {'tool_calls': [CALL]}], "'tool_calls' and role 'user'"),
      ([{'role': 'assistant', 'content': ''}, USER], 'message 1 .*is empty'),
      ([USER | {'content': None}], "message 1 .*no 'content'"),
      ([USER | {'content': [1]}], "message 1 .*'content' that is no text"),
      ([USER | {'role': 'judge'}], 'message 1 .*role'),
      (
          [USER, {'role': 'assistant', 'tool_calls': [{'name': 'f'}]}, USER],
          'message 2 .*call 1 .*no function',
      ),
      (
          [
              USER,
              {
                  'role': 'assistant',
                  'tool_calls': [
                      {'function': {'name': 'f', 'arguments': '[1'}}
                  ],
              },
              USER,
          ],
          r'message 2 .*arguments \(f\) that are text and no JSON',
      ),
      (
          [
              USER,
              {
                  'role': 'assistant',
                  'tool_calls': [
                      {'function': {'name': 'f', 'arguments': {}, 'x': 1}}
                  ],
              },
              USER,
          ],
          "message 2 .*call 1 that has 'x'",
      ),
      ([], 'is empty'),
      ('text', 'no list'),
  )
  def test_K49_what_no_prompt_shows_is_refused(self, given, what):
    with self.assertRaisesRegex(ValueError, what):
      row_messages.read(given)

  @parameterized.parameters(
      ({'a': ['x', '\ud800']}, r"half of a surrogate pair .* at 'a\[1\]'"),
      ({'\udfff': 1}, 'half of a surrogate pair'),
      (float('nan'), 'no finite number'),
      (2**70, 'more than 64 bits'),
      ({1: 2}, 'no text'),
      ({1, 2}, 'a set'),
  )
  def test_K54_values_that_no_file_holds_are_named(self, value, what):
    self.assertRegex(row_values.problem(value), what)

  def test_K54_depth_is_no_matter_of_the_interpreter(self):
    value = []
    for _ in range(100_000):
      value = [value]
    self.assertIn('levels deep', row_values.problem(value))
    self.assertEqual(row_values.problem({'a': [1, 'x', None, 0.5]}), '')


if __name__ == '__main__':
  absltest.main()
