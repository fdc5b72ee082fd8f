"""A world that takes any words, slowly: for runs of several processes.

What it pays depends on the words, so that advantages differ; how long it takes
to answer is chance, so that an order of arrival would show.
"""

import hashlib
import pathlib
import random
import time

from rl_tpu.environments import protocol
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol as verifiers

TURNS = 5
_EXPERIMENT = """
from rl_tpu.config import overrides
from tests import tiny


def get_config():
  return overrides.apply(tiny.experiment({model!r}, name='chatter'), {changes!r})
"""
_SETTINGS = (
    'environment.target=tests.launch.chatter:Chatter',
    'environment.settings={}',
    'environment.isolation=process',
    'environment.workers=3',
    'verifier.target=tests.launch.chatter:Taste',
    'verifier.settings={}',
    'reward.weights={"word": 0.2, "terminal": 1.0}',
    # Rollouts take several windows.
    'budgets.window=64',
    'compaction.lookahead=16',
    'compaction.max_summary_tokens=8',
    'batching.row_length=64',
    'sampler.prefill_buckets=64',
    'checkpoint.every=1',
)


def write_experiment(
    folder: pathlib.Path, model: str, *changes: str
) -> pathlib.Path:
  """Writes the experiment's file: a tiny model in this world, changed."""
  path = folder / 'experiment.py'
  path.write_text(
      _EXPERIMENT.format(model=model, changes=(*_SETTINGS, *changes))
  )
  return path


def _draw(text):
  """A number in [0, 1) that depends on the text alone."""
  return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] / 256


class Chatter:
  """Says a number of words back, `turns` times."""

  spec = protocol.EnvironmentSpec(
      name='chatter',
      version='1',
      blocking=True,
      reward_names=frozenset({'word'}),
  )

  def __init__(self, turns: int = TURNS):
    """Args: replies that a rollout takes."""
    self._turns = turns
    self._said = []

  def reset(self, task, seed):
    del task
    self._said = [str(seed)]
    return self._observe()

  def _observe(self):
    count = 1 + int(4 * _draw(''.join(self._said)))
    message = protocol.Message('user', 'go ' * count)
    return protocol.Observation(prompt=(message,))

  def instruction(self):
    return (protocol.Message('system', 'task'),)

  def step(self, action):
    time.sleep(random.uniform(0.0, 0.004))
    self._said.append(action.text)
    rewards = {'word': _draw(action.text)}
    if len(self._said) > self._turns:
      end = protocol.End(term.Termination.POLICY_STOP)
      return protocol.Step(rewards=rewards, end=end)
    return protocol.Step(self._observe(), rewards=rewards)

  def evidence(self):
    return {'said': self._said}

  def close(self):
    self._said = []


class Taste:
  """Likes some of what was said."""

  verifier_id = 'taste'
  version = '1'
  deterministic = True

  def score(self, evidence):
    time.sleep(random.uniform(0.0, 0.004))
    value = _draw(''.join(evidence['said']))
    return verifiers.Score(value=value, solved=value > 0.5)
