"""Builds what a run needs apart from its model, checking before it starts.

The same parts serve train, evaluate and sft. Everything a user can get wrong
is found here, before a device computes and before a file is written.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from rl_tpu.config import fields
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.environments import protocol
from rl_tpu.isolation import remote
from rl_tpu.isolation import variables
from rl_tpu.records import records
from rl_tpu.rewards import scaling
from rl_tpu.rollout import desk as desk_lib
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.sampler import contract
from rl_tpu.sampler import types as sampler_types
from rl_tpu.sharding import hosts as hosts_lib
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.verifiers import pooled

SAMPLER_BUILD = f'rl_tpu/jetstream-{contract.ENGINE_CONTRACT}'


@dataclasses.dataclass
class World:
  """What rollouts need apart from the policy: tasks, environment, verifier.

  Attributes:
    config: the experiment.
    tokenizer: of the model folder.
    template: its chat template.
    spec: of the environment.
    verifier: in its worker pool; None for scripted runs without one.
    pool: environments, in worker processes or inline.
    hosts: the processes that environments and verifiers are divided over.
    interrupt: True gives up the rollouts that are being gathered.
    watch: entered, with its name, for what waits for the devices.
  """

  config: schema.ExperimentConfig
  tokenizer: tokenizer_lib.Tokenizer
  template: chat.ChatTemplate
  spec: protocol.EnvironmentSpec
  verifier: pooled.PooledVerifier
  pool: remote.RemotePool | desk_lib.InlinePool
  hosts: hosts_lib.Hosts
  interrupt: Callable[[], bool] = lambda: False
  watch: Callable[[str], contextlib.AbstractContextManager] = (
      contextlib.nullcontext
  )

  def tasks(self, split: str) -> Sequence[records.Task]:
    """The task source of a split."""
    config = self.config.tasks
    return loading.construct(
        config.target, config.settings, setting='tasks', split=split
    )

  def sessions(
      self, sampling: schema.SamplingConfig, build: str
  ) -> Callable[[session_lib.Job], session_lib.Session]:
    """A factory of sessions that sample with the given settings."""
    config = self.config
    rules = config.termination
    flags = config.budgets
    # Without a critic every truncation is scored, whatever T3 says (E2).
    ends = (
        config.advantage.estimator != 'gae'
        or flags.budget_visible
        or flags.holds_at_eval
    )
    terminal = {'terminal': True, 'bootstrap': False, 'auto': ends}
    settings = session_lib.Settings(
        budgets=config.budgets,
        compaction=config.compaction,
        sampling=sampling,
        reward_weights=dict(config.reward.weights),
        scores_truncations=(
            terminal[rules.budget_truncation]
            or terminal[rules.context_truncation]
        ),
        verifier_id=self.verifier.verifier_id,
        verifier_version=self.verifier.version,
        sampler_build=build,
        sampler_dtype=config.model.dtype,
        rescore_share=config.verifier.rescore_share,
    )
    return functools.partial(
        session_lib.Session,
        spec=self.spec,
        template=self.template,
        tokenizer=self.tokenizer,
        settings=settings,
    )

  def runner(
      self,
      sampler: Any,
      sampling: schema.SamplingConfig,
      *,
      on_end: Callable[[int, int], None] | None = None,
  ) -> runner_lib.Runner:
    """A runner of sessions over a sampler."""
    exchange = runner_lib.Exchange(
        self.hosts,
        digest=sampler.digest,
        check_every=self.config.sampler.check_every,
        stop=self.interrupt,
    )
    return runner_lib.Runner(
        sampler,
        self.pool.acquire,
        self.verifier.score_async,
        functools.partial(
            self.sessions(sampling, SAMPLER_BUILD), clock=exchange.now
        ),
        exchange=exchange,
        start_retries=self.config.environment.start_retries,
        watch=self.watch,
        on_end=on_end,
    )

  def close(self) -> None:
    """Ends the worker processes."""
    self.verifier.close()
    self.pool.close()


def build_world(
    config: schema.ExperimentConfig,
    tokenizer: tokenizer_lib.Tokenizer,
    template: chat.ChatTemplate,
) -> World:
  """Builds tasks, environment and verifier, and checks the window.

  Raises:
    ValueError: a stop text that is no token, no stop at all, a window that
      the instruction does not leave room in, settings that a class does not
      take.
  """
  _check_stop(config, tokenizer)
  environment = loading.construct(
      config.environment.target,
      config.environment.settings,
      setting='environment',
  )
  loading.check_has(environment, 'spec', setting='environment')
  spec = environment.spec
  if spec.blocking and config.environment.isolation == 'inline':
    raise ValueError(
        f"environment.isolation = 'inline': {spec.name} blocks; use"
        ' environment.isolation=process.'
    )
  if (
      config.compaction.author == 'runtime'
      and 'runtime_summary' not in spec.capabilities
  ):
    raise ValueError(
        f"compaction.author = 'runtime': {spec.name} writes no summaries; use"
        ' compaction.author=policy.'
    )
  _check_reward_names(config, spec)
  _check_steps(config, spec)
  _check_window(config, environment, tokenizer, template)
  variables.check(config.isolation.pass_variables)
  pool = _build_pool(config.environment, config.isolation)
  verifier = pooled.PooledVerifier(
      config.verifier.target,
      dict(config.verifier.settings),
      workers=config.verifier.workers,
      timeout_s=config.verifier.timeout_s,
      startup_s=config.verifier.start_timeout_s,
      memory_gib=config.verifier.memory_gib,
      pass_variables=config.isolation.pass_variables,
  )
  try:
    scaling.check_verifier(config.reward, verifier.verifier_id)
    for split in ('train', 'eval'):
      _check_answers(config, verifier, split)
  except ValueError:
    verifier.close()
    pool.close()
    raise
  return World(
      config, tokenizer, template, spec, verifier, pool, hosts_lib.here()
  )


def _check_answers(config, verifier, split: str) -> None:
  """Refuses a task that the verifier could never score (K50)."""
  if verifier.check_payload is None:
    return
  source = loading.construct(
      config.tasks.target, config.tasks.settings, setting='tasks', split=split
  )
  for index in range(len(source)):
    task = source[index]
    try:
      verifier.check_payload(task.payload)
    except ValueError as error:
      raise ValueError(
          f'tasks.target = {config.tasks.target}: task {index + 1} of the'
          f' {split} split ({task.task_id}): {error} check-data names the rows'
          ' of a file.'
      ) from error


def _build_pool(
    config: schema.EnvironmentConfig, isolation: schema.IsolationConfig
) -> remote.RemotePool | desk_lib.InlinePool:
  settings = dict(config.settings)
  if config.isolation == 'inline':
    cls = loading.import_target(config.target)
    return desk_lib.InlinePool(lambda: cls(**settings))
  return remote.RemotePool(
      config.target,
      settings,
      workers=config.workers,
      timeout_s=config.step_timeout_s,
      startup_s=config.start_timeout_s,
      close_s=config.close_timeout_s,
      memory_gib=config.memory_gib,
      pass_variables=isolation.pass_variables,
  )


def _check_stop(config, tokenizer) -> None:
  named = [tokenizer.token_id(text) for text in config.sampling.stop]
  count = len(named or tokenizer.stop_ids)
  if not count:
    raise ValueError(
        'sampling.stop = (): the model folder names no end tokens either'
        ' (eos_token_id in generation_config.json); name a stop text.'
    )
  if count > sampler_types.MAX_STOP_IDS:
    raise ValueError(
        f'sampling.stop = {config.sampling.stop}: {count} end tokens, and the'
        f' sampler takes {sampler_types.MAX_STOP_IDS}; name those that count.'
    )


def _check_reward_names(config, spec) -> None:
  if spec.reward_names is None:
    return
  known = sorted({'terminal', *spec.reward_names})
  for name in config.reward.weights:
    if name not in known:
      raise ValueError(
          f'reward.weights.{name}: {spec.name} gives no such reward; did you'
          f' mean {fields.nearest(name, known)}?'
      )


def _check_steps(config, spec) -> None:
  """What the estimators that compare steps need of the environment (E5, E6)."""
  estimator = config.advantage.estimator
  if (
      estimator == 'gigpo'
      and config.gigpo.anchor == 'state'
      and protocol.STATE_ID not in spec.capabilities
  ):
    raise ValueError(
        f"gigpo.anchor='state': {spec.name} does not name its states"
        f' (capability {protocol.STATE_ID}); use gigpo.anchor=observation,'
        ' which merges states that only look alike.'
    )
  if estimator == 'process':
    weighted = {
        name for name, weight in config.reward.weights.items() if weight > 0
    }
    names = spec.reward_names or frozenset()
    if not weighted & names:
      known = ', '.join(sorted(names)) or 'none'
      raise ValueError(
          "advantage.estimator='process': it compares step rewards, and none"
          f' that {spec.name} names ({known}) has a weight above 0; set'
          ' reward.weights.NAME, or use another estimator.'
      )


def _check_window(config, environment, tokenizer, template) -> None:
  """Resets once: the opening, a reply and a summary must fit the window."""
  window = config.budgets.window
  if window is None:
    raise ValueError('budgets.window = None: set the tokens of a segment.')
  source = loading.construct(
      config.tasks.target, config.tasks.settings, setting='tasks', split='train'
  )
  loading.check_has(source, '__getitem__', setting='tasks')
  if not len(source):
    raise ValueError(f'tasks.target = {config.tasks.target}: it has no tasks.')
  task = source[0]
  observation = environment.reset(task, task.seed)
  opening = [*environment.instruction(), *observation.messages]
  opening += observation.prompt
  environment.close()
  template = template.with_tools(protocol.tools_of(environment.spec, task))
  try:
    used = len(chat.Conversation(template, tokenizer).open(opening))
  except ValueError as error:
    raise ValueError(
        f'model.path = {config.model.path}: the opening of the first task'
        f' ({task.task_id}) cannot be written: {error}'
    ) from error
  text = template.render(opening, ask=True)
  if not any(message.content.strip() in text for message in opening):
    raise ValueError(
        f'model.path = {config.model.path}: its chat template shows none of'
        ' the messages; name another file with model.chat_template.'
    )
  if used + config.sampling.max_turn_tokens > window:
    raise ValueError(
        f'budgets.window = {window}: the instruction takes {used} tokens and a'
        f' reply up to {config.sampling.max_turn_tokens}'
        ' (sampling.max_turn_tokens); use a window of at least'
        f' {used + config.sampling.max_turn_tokens}.'
    )
  if window > config.batching.row_length:
    raise ValueError(
        f'batching.row_length = {config.batching.row_length} is shorter than'
        f' budgets.window = {window}; a segment is never cut to fit a row.'
    )
