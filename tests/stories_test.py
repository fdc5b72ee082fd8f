"""The experiments with a story model: their pages, settings and windows."""

import ast
import dataclasses
import functools
import pathlib
import string

import numpy as np
import tokenizers
from absl.testing import absltest
from absl.testing import parameterized
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from rl_tpu.config import loading
from rl_tpu.config import validation
from rl_tpu.environments import stories
from rl_tpu.records import records
from rl_tpu.rollout import chain
from rl_tpu.rollout import desk as desk_lib
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.tasks import stories as tasks_lib
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers
from rl_tpu.verifiers import stories as verifier_lib
from tests.rollout import worlds

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'experiments'
NAMES = ('stories_noun_ppo', 'stories_compaction_ppo')


def load(name: str):
  return loading.load_experiment(FOLDER / f'{name}.py')


def letters() -> tokenizer_lib.Tokenizer:
  """One symbol is one token; `<s>` begins and ends a text."""
  symbols = string.ascii_letters + ' .!?'
  vocabulary = {'<s>': 0} | {s: i for i, s in enumerate(symbols, start=1)}
  made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token='<unk>'))
  made.pre_tokenizer = pre_tokenizers.Split(
      tokenizers.Regex('.'), behavior='isolated'
  )
  made.decoder = decoders.Fuse()
  made.add_special_tokens(['<s>'])
  return tokenizer_lib.Tokenizer(made, stop_ids=(0,))


class _Verdict:
  """A score that is there at once."""

  def __init__(self, evidence):
    self._score = verifier_lib.NounVerifier().score(evidence)

  def done(self) -> bool:
    return True

  def result(self) -> verifiers.Score:
    return self._score


def play(config, replies) -> tuple[records.Rollout, list[str]]:
  """One rollout of scripted replies, and the texts of its segments."""
  tokenizer = letters()
  template = pathlib.Path(config.model.chat_template).read_text()
  said = iter(replies)
  settings = session_lib.Settings(
      budgets=config.budgets,
      compaction=config.compaction,
      sampling=config.sampling,
      reward_weights=dict(config.reward.weights),
      scores_truncations=False,
      verifier_id='v',
      verifier_version='1',
      sampler_build='script',
      sampler_dtype='float32',
  )
  make = functools.partial(
      session_lib.Session,
      spec=stories.Stories(**config.environment.settings).spec,
      template=chat.ChatTemplate(template, {'bos_token': '<s>'}),
      tokenizer=tokenizer,
      settings=settings,
  )
  world = desk_lib.InlinePool(
      lambda: stories.Stories(**config.environment.settings)
  )
  sampler = worlds.ScriptedSampler(tokenizer, lambda *_: next(said))
  runner = runner_lib.Runner(sampler, world.acquire, _Verdict, make)
  (rollout,) = runner.collect(
      [session_lib.Job('r', tasks_lib.NounTasks('train')[0], seed=0)]
  )
  return rollout, [tokenizer.decode(s.token) for s in rollout.segments]


class StoriesTest(parameterized.TestCase):

  @parameterized.parameters(*NAMES)
  def test_its_settings_are_sound_and_its_page_says_what_it_asks(self, name):
    folder = pathlib.Path(self.create_tempdir().full_path)
    for file in ('config.json', 'tokenizer.json'):
      (folder / file).write_text('{}')
    config = load(name)
    # Whose model it is, is for the user to say.
    self.assertEqual(config.model.path, '')
    model = dataclasses.replace(config.model, path=str(folder))
    config = dataclasses.replace(config, model=model)
    validation.validate(config)
    validation.validate(config, verb='evaluate')
    page = ast.get_docstring(ast.parse((FOLDER / f'{name}.py').read_text()))
    for heading in ('Question', 'Expected', 'Hardware', 'Model', 'Command'):
      self.assertIn(f'\n{heading}: ', page)
    self.assertIn(f'experiments/{name}.py', page)
    self.assertIn('--set model.path=', page)

  @parameterized.parameters(*NAMES)
  def test_its_classes_take_their_settings(self, name):
    config = load(name)
    for section in ('environment', 'verifier'):
      chosen = getattr(config, section)
      loading.construct(chosen.target, chosen.settings, setting=section)
    for split in ('train', 'eval'):
      tasks = loading.construct(
          config.tasks.target, config.tasks.settings, setting='tasks',
          split=split,
      )
      self.assertNotEmpty(tasks)
    count = config.evaluation.final_tasks
    nouns = [tasks[i].payload['noun'] for i in range(count)]
    counts = {nouns.count(noun) for noun in tasks_lib.nouns('held_out')}
    self.assertLen(counts, 1)

  def test_one_reply_is_a_whole_run(self):
    config = load('stories_noun_ppo')
    reply = ' He found the ball. Then he ran.'
    rollout, texts = play(config, [reply])
    self.assertEqual(texts, ['<s>Tim looked for a ball.' + reply])
    self.assertEqual(rollout.termination, term.Termination.POLICY_STOP)
    self.assertEqual(rollout.terminal_reward, 1.0)
    np.testing.assert_array_equal(
        rollout.segments[0].is_action, [False] * 23 + [True] * len(reply)
    )

  def test_the_line_and_the_last_sentence_open_the_next_window(self):
    # A symbol is a token here, and a window of 64 goes on while a reply of 24
    # fits: up to 40. The line takes 23, a sentence 17: 23 + 17 goes on and
    # 23 + 34 does not. Each later window begins with 23 + 17.
    config = load('stories_compaction_ppo')
    sentence = ' He went up fast.'
    self.assertLen(sentence, 17)
    replies = [*[sentence] * 5, ' He had the ball!']
    rollout, texts = play(config, replies)
    line = '<s>Tim looked for a ball.'
    self.assertEqual(
        texts, [line + sentence * 2] * 4 + [line + sentence + replies[-1]]
    )
    self.assertIsNone(chain.chain_problem(rollout, allow_dropped_prefix=False))
    # Sampled once each: what is kept is context, not action.
    sampled = ''.join(
        letters().decode(s.token[s.is_action]) for s in rollout.segments
    )
    self.assertEqual(sampled, ''.join(replies))
    self.assertEqual(rollout.terminal_reward, 1.0)

  def test_only_the_last_sentence_counts(self):
    config = load('stories_compaction_ppo')
    rollout, _ = play(config, [' The ball.'] * 5 + [' He ran.'])
    self.assertEqual(rollout.terminal_reward, 0.0)
    rollout, _ = play(config, [' The ball.', ' The ball.<s>'])
    self.assertEqual(rollout.termination, term.Termination.FAILURE)
    self.assertEqual(rollout.terminal_reward, 0.0)


if __name__ == '__main__':
  absltest.main()
