"""Tasks and scores of a reasoning-gym dataset, question by question."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.environments import protocol
from rl_tpu.environments import single_turn
from rl_tpu.tasks import reasoning_gym as tasks_lib
from rl_tpu.tasks import splits
from rl_tpu.verifiers import reasoning_gym as verifiers

SUMS = {
    'dataset': 'chain_sum',
    'size': 200,
    'settings': {'min_terms': 2, 'max_terms': 2},
}


class DatasetTest(parameterized.TestCase):

  def test_no_question_is_in_both_splits_or_comes_twice(self):
    found = {
        split: [
            tasks_lib.DatasetTasks(split, **SUMS)[i].payload['messages'][0]
            ['content']
            for i in range(len(tasks_lib.DatasetTasks(split, **SUMS)))
        ]
        for split in splits.SPLITS
    }
    everything = found['train'] + found['eval']
    self.assertLen(set(everything), len(everything))
    self.assertBetween(len(found['eval']), 5, 45)
    self.assertGreater(len(found['train']), 120)

  def test_the_environment_and_the_verifier_take_a_task(self):
    task = tasks_lib.DatasetTasks('train', **SUMS)[3]
    self.assertEqual(json.loads(json.dumps(task.payload)), task.payload)
    expression = task.payload['answer']['entry']['metadata']['expression']
    a, sign, b = expression.split()
    right = int(a) + int(b) if sign == '+' else int(a) - int(b)
    environment = single_turn.SingleTurn()
    environment.reset(task, 0)
    verifier = verifiers.DatasetVerifier('number')
    for text, value in (
        (f'It is 4 and then {right}.', 1.0),
        (f'{right}, or {right + 1}', 0.0),
        ('no idea', 0.0),
    ):
      environment.step(
          protocol.Action(text=text, finish_reason='stop')
      )
      score = verifier.score(environment.evidence())
      self.assertEqual((score.value, score.solved), (value, value == 1.0), text)
    self.assertEqual(score.components['answered'], 0.0)

  @parameterized.parameters(
      ('tag', 'so <answer> 12 </answer>', True),
      ('tag', 'so 12', False),
      ('reply', ' 12\n', True),
      ('number', 'x = 12.', True),
      # The dataset gives part credit to an answer that holds the right one.
      ('number', '-12', False),
  )
  def test_what_of_a_reply_is_its_answer(self, kind, reply, solved):
    entry = {'question': '5 + 7 =', 'answer': '12', 'metadata': {}}
    score = verifiers.DatasetVerifier(kind).score(
        {'reply': reply, 'answer': {'dataset': 'chain_sum', 'entry': entry}}
    )
    self.assertEqual(score.solved, solved)

  @parameterized.parameters(
      (dict(split='test'), "split = 'test'"),
      (dict(dataset='chain_sums'), "dataset = 'chain_sums'"),
      (dict(settings={'min_term': 2}), 'min_term'),
      (dict(size=0), 'size = 0'),
      (dict(size=1, split='eval'), 'draw more'),
  )
  def test_refusals(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      tasks_lib.DatasetTasks(**{**SUMS, **changes})

  def test_another_word_for_the_answer_is_refused(self):
    with self.assertRaisesRegex(ValueError, "answer = 'last'.*tag"):
      verifiers.DatasetVerifier('last')


if __name__ == '__main__':
  absltest.main()
