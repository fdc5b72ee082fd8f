"""Small environments and a sampler by script, for session tests."""

import dataclasses
import time

import numpy as np

from rl_tpu.config import schema
from rl_tpu.environments import protocol
from rl_tpu.rollout import session as session_lib
from rl_tpu.sampler import types as sampler_types
from rl_tpu.types import budget
from rl_tpu.types import termination as term

_SPEC = protocol.EnvironmentSpec(
    name='counting',
    version='1',
    blocking=False,
    capabilities=frozenset({protocol.RUNTIME_SUMMARY}),
    permissions_hash='p',
    tool_set_hash='t',
)


def settings(**changes):
  """What sessions share: a window of 90 tokens, replies of 8 at most."""
  base = session_lib.Settings(
      budgets=budget.Budget(window=90),
      compaction=schema.CompactionConfig(
          mode='window', lookahead=0, max_summary_tokens=8,
          observation_reserve=4,
      ),
      sampling=schema.SamplingConfig(max_turn_tokens=8),
      reward_weights={'line': 0.25},
      scores_truncations=True,
      verifier_id='v',
      verifier_version='1',
      sampler_build='script',
      sampler_dtype='float32',
  )
  return dataclasses.replace(base, **changes)


def line(text, request):
  """A summary where one is asked for, else a word."""
  del request
  return ' 1 2\n' if text.endswith('summary\n>') else ' ok\n'


class Done:
  """A future with its answer."""

  def __init__(self, value):
    self._value = value

  def done(self):
    return True

  def result(self):
    return self._value


class Counting:
  """Asks `turns` times for a line; the task's payload may break it.

  payload: {'turns': n, 'fault': None | 'raise' | 'hang' | 'reset'}.
  """

  spec = _SPEC

  def __init__(self):
    self._turn = 0
    self._payload = {}

  def reset(self, task, seed):
    del seed
    self._payload = task.payload
    self._turn = 0
    if self._payload.get('fault') == 'reset':
      raise RuntimeError('no such machine')
    return protocol.Observation(prompt=(protocol.Message('user', '0: go'),))

  def instruction(self):
    return (protocol.Message('system', 'task: count'),)

  def step(self, action):
    fault = self._payload.get('fault')
    if self._turn == 1 and fault == 'raise':
      raise RuntimeError('broken')
    if self._turn == 1 and fault == 'hang':
      time.sleep(3600)
    if action.finish_reason != 'stop':
      return protocol.Step(end=protocol.End(term.Termination.FAILURE))
    self._turn += 1
    rewards = {'line': 1.0}
    if self._turn == self._payload['turns']:
      end = protocol.End(term.Termination.POLICY_STOP)
      return protocol.Step(rewards=rewards, end=end)
    message = protocol.Message('tool', 'ok')
    prompt = protocol.Message('user', f'{self._turn}: go')
    observation = protocol.Observation(messages=(message,), prompt=(prompt,))
    return protocol.Step(observation, rewards=rewards)

  def summarise(self):
    return f'at {self._turn}'

  def evidence(self):
    return {'turns': self._turn}

  def state_id(self):
    return str(self._turn)

  def close(self):
    self._turn = 0


class ScriptedSampler:
  """Answers every request with `reply(prompt text)`, a few per step."""

  def __init__(self, tokenizer, reply, *, per_step=3, newest_first=False):
    self._tokenizer = tokenizer
    self._reply = reply
    self._queue = []
    self._per_step = per_step
    self._newest_first = newest_first
    self.prompts = []

  @property
  def busy(self):
    return bool(self._queue)

  def submit(self, request):
    self._queue.append(request)

  def step(self):
    if self._newest_first:
      self._queue.reverse()
    now, self._queue = (
        self._queue[: self._per_step], self._queue[self._per_step :]
    )
    return [self._complete(request) for request in now]

  def _complete(self, request):
    text = self._tokenizer.decode(request.prompt)
    self.prompts.append(text)
    token = self._tokenizer.encode(self._reply(text, request))
    token = token[: request.params.max_tokens]
    stopped = int(token[-1]) in request.params.stop_ids
    return sampler_types.Completion(
        request_id=request.request_id,
        prompt=request.prompt,
        token=token,
        logprob=-np.ones(len(token), np.float32),
        version=np.full(len(token), 7, np.int32),
        finish_reason='stop' if stopped else 'length',
        params=request.params,
    )
