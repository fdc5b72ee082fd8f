"""Templates of strangers in a warm process: limits, tricks, speed."""

import statistics
import time

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.isolation import text_worker
from rl_tpu.text import rendering

_CHATML = (
    '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>'
    '\n{% endfor %}'
)
_LOOP = '{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}'
_OUTPUT = (
    '{% for i in range(50000) %}{{ "x" * 1000 }}{% endfor %}'
)


class RenderingTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.worker = text_worker.TextWorker(rendering.TARGET, timeout_s=1.0)
    cls.addClassCleanup(cls.worker.close)

  def test_a_conversation_and_its_speed(self):
    context = {'messages': [{'role': 'user', 'content': 'é'}] * 4}
    want = '<|im_start|>user\né<|im_end|>\n' * 4
    times = []
    for _ in range(300):
      start = time.perf_counter()
      self.assertEqual(self.worker.render(_CHATML, context), want)
      times.append(time.perf_counter() - start)
    self.assertLess(statistics.median(times), 1e-3)
    print(f'median {1e3 * statistics.median(times):.3f} ms')

  @parameterized.parameters(
      (_LOOP + '{% endfor %}', 'more than 1 s'),
      ('{{ "a" * 10**10 }}', 'GiB'),
      (_OUTPUT, 'more than 16777216 bytes'),
  )
  def test_a_limit_costs_the_call_and_the_next_is_served(self, text, message):
    with self.assertRaisesRegex(text_worker.LimitExceeded, message):
      self.worker.render(text, {})
    self.assertEqual(self.worker.render('{{ a }}', {'a': 1}), '1')

  @parameterized.parameters(
      ('{{ "".__class__.__mro__ }}', 'unsafe|reaches too far'),
      ('{{ messages.append(1) }}', 'reaches too far|failed'),
      ('{% include "x" %}', 'include, import or extends'),
      ('{% import "x" as y %}', 'include, import or extends'),
      ('{% extends "x" %}', 'include, import or extends'),
      ('{% for i in range(10**9) %}{% endfor %}', 'Range too big'),
      ('{{ 1 / 0 }}', 'ZeroDivisionError'),
      ('{{ nothing.at.all }}', "'nothing' is undefined"),
      ('{% for %}', 'does not compile'),
  )
  def test_what_cannot_be_used_is_told(self, text, message):
    with self.assertRaisesRegex(text_worker.Failed, message) as caught:
      self.worker.render(text, {'messages': []})
    self.assertLess(len(str(caught.exception)), 400)

  def test_a_refusal_of_the_template_is_told_apart(self):
    with self.assertRaisesRegex(text_worker.Refused, 'roles'):
      self.worker.render('{{ raise_exception("roles") }}', {})


if __name__ == '__main__':
  absltest.main()
