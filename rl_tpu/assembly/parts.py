"""Builds the parts of a run from its config, checking before it starts.

The same parts serve train, evaluate and sft. Everything a user can get wrong
is found here, before a device computes and before a file is written.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rl_tpu.config import fields
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.environments import protocol
from rl_tpu.isolation import remote
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder as decoder_lib
from rl_tpu.models import execution as execution_lib
from rl_tpu.models import huggingface
from rl_tpu.models import lora
from rl_tpu.models import splash as splash_lib
from rl_tpu.records import records
from rl_tpu.rewards import scaling
from rl_tpu.rollout import runner as runner_lib
from rl_tpu.rollout import session as session_lib
from rl_tpu.sampler import contract
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.sampler import types as sampler_types
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
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
    acquire: hands out an environment, None while all are taken.
    pool: worker processes of environments that block; None if inline.
  """

  config: schema.ExperimentConfig
  tokenizer: tokenizer_lib.Tokenizer
  template: chat.ChatTemplate
  spec: protocol.EnvironmentSpec
  verifier: pooled.PooledVerifier
  acquire: Callable[[], runner_lib.EnvironmentHandle | None]
  pool: remote.RemotePool | None

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
    return runner_lib.Runner(
        sampler,
        self.acquire,
        self.verifier.score_async,
        self.sessions(sampling, SAMPLER_BUILD),
        fault_of=runner_lib.fault_of,
        on_end=on_end,
    )

  def close(self) -> None:
    """Ends the worker processes."""
    self.verifier.close()
    if self.pool is not None:
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
  pool = None
  if config.environment.isolation == 'process':
    pool = remote.RemotePool(
        config.environment.target,
        dict(config.environment.settings),
        workers=config.environment.workers,
        timeout_s=config.environment.step_timeout_s,
    )
    acquire = pool.acquire
  else:
    settings = dict(config.environment.settings)
    cls = loading.import_target(config.environment.target)
    acquire = lambda: runner_lib.InlineEnvironment(cls(**settings))
  verifier = pooled.PooledVerifier(
      config.verifier.target,
      dict(config.verifier.settings),
      workers=config.verifier.workers,
      timeout_s=config.verifier.timeout_s,
  )
  try:
    scaling.check_verifier(config.reward, verifier.verifier_id)
  except ValueError:
    verifier.close()
    if pool is not None:
      pool.close()
    raise
  return World(config, tokenizer, template, spec, verifier, acquire, pool)


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
        f"gigpo.anchor='state': {spec.name} does not name its states (capability"
        f' {protocol.STATE_ID}); use gigpo.anchor=observation, which merges'
        ' states that only look alike.'
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
  if not len(source):
    raise ValueError(f'tasks.target = {config.tasks.target}: it has no tasks.')
  observation = environment.reset(source[0], source[0].seed)
  opening = [*environment.instruction(), *observation.messages]
  opening += observation.prompt
  environment.close()
  template = template.with_tools(environment.spec.tools)
  used = len(chat.Conversation(template, tokenizer).open(opening))
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


@dataclasses.dataclass
class Policy:
  """The model's side: mesh, decoder, sampler and learner."""

  mesh: jax.sharding.Mesh
  decoder: model_config.DecoderConfig
  params: Any
  tokenizer: tokenizer_lib.Tokenizer
  template: chat.ChatTemplate


def build_policy(config: schema.ExperimentConfig) -> Policy:
  """Reads the model folder onto the mesh.

  Raises:
    ValueError: a mesh that the devices or the rows do not fit, a folder that
      lacks a file or a tensor, a tokenizer larger than the model.
  """
  mesh = build_mesh(config)
  tokenizer = tokenizer_lib.Tokenizer.from_folder(config.model.path)
  template = chat.ChatTemplate.from_folder(
      config.model.path, file=config.model.chat_template
  )
  decoder, params = huggingface.load(config.model.path, mesh=mesh)
  decoder = decoder_settings(config, decoder, tokenizer)
  if decoder.lora is not None:
    params = _with_adapters(config, decoder, params, mesh)
  return Policy(mesh, decoder, params, tokenizer, template)


def build_mesh(
    config: schema.ExperimentConfig,
    devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """The run's mesh.

  Args:
    config: the experiment.
    devices: defaults to every device of the program.

  Raises:
    ValueError: sizes that the devices or the rows do not fit, or rows that
      the attention cannot take.
  """
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  batching = config.batching
  mesh_lib.check_rows(
      mesh, batching.rows_per_microbatch, 'batching.rows_per_microbatch'
  )
  execution = execution_lib.Execution(
      attention=config.model.attention, mesh=mesh
  )
  splash = execution.attention_of_platform() == 'splash'
  if splash and batching.row_length % splash_lib.LANES:
    raise ValueError(
        f'batching.row_length = {batching.row_length}: splash attention, which'
        f' model.attention = {config.model.attention!r} means on this mesh,'
        f' takes multiples of {splash_lib.LANES}.'
    )
  return mesh


def decoder_settings(
    config: schema.ExperimentConfig,
    decoder: model_config.DecoderConfig,
    tokenizer: tokenizer_lib.Tokenizer,
) -> model_config.DecoderConfig:
  """The folder's decoder as this experiment uses it.

  Raises:
    ValueError: a tokenizer or a window larger than the model.
  """
  if tokenizer.size > decoder.vocab_size:
    raise ValueError(
        f'model.path = {config.model.path}: the tokenizer has'
        f' {tokenizer.size} tokens, the model {decoder.vocab_size} rows.'
    )
  if decoder.max_length < config.budgets.window:
    raise ValueError(
        f'budgets.window = {config.budgets.window}: the model has'
        f' {decoder.max_length} positions.'
    )
  return dataclasses.replace(
      decoder,
      usable_vocab=tokenizer.size,
      lora=adapter_settings(config.model),
  )


def adapter_settings(model: schema.ModelConfig) -> lora.Settings | None:
  """The adapters that are asked for, or None."""
  asked = model.lora
  if not asked.rank:
    return None
  return lora.Settings(asked.rank, asked.alpha, asked.targets)


def _with_adapters(config, decoder, params, mesh):
  """Puts new adapters beside the matrices of a base."""
  axes = lora.split(decoder_lib.logical_axes(decoder))[1]
  shapes = lora.split(decoder_lib.shapes_of(decoder))[1]
  # The rest of the new parameters is never computed.
  make = jax.jit(
      lambda key: lora.split(decoder_lib.init_params(decoder, key))[1],
      out_shardings=rules.param_shardings(axes, mesh, shapes),
  )
  return lora.join(params, make(jax.random.key(config.seed)))


def build_learner(
    config: schema.ExperimentConfig,
    decoder: model_config.DecoderConfig,
    mesh: jax.sharding.Mesh,
    *,
    supervised: bool = False,
) -> learner_lib.Learner:
  """The learner with each room's own settings."""
  return learner_lib.Learner(
      decoder,
      mesh,
      model=config.model,
      temperature=config.sampling.temperature,
      objective=objective.Settings.of(config),
      gae_config=config.gae,
      critic=config.critic,
      actor_optimizer=config.actor_optimizer,
      critic_optimizer=config.critic_optimizer,
      memory=config.memory,
      supervised=supervised,
  )


def build_engine(
    config: schema.ExperimentConfig,
    decoder: model_config.DecoderConfig,
    mesh: jax.sharding.Mesh,
) -> engine_lib.PolicyEngine:
  """The decode engine, on the run's mesh or on some of its devices."""
  if config.sampler.devices:
    mesh = mesh_lib.make_mesh(
        schema.MeshConfig(),
        list(mesh.devices.flat)[: config.sampler.devices],
    )
  return engine_lib.PolicyEngine(
      decoder_config=decoder,
      mesh=mesh,
      slots=config.sampler.slots,
      tokens_per_call=config.sampler.tokens_per_call,
      prefill_buckets=config.sampler.prefill_buckets,
      prefill_rows=config.sampler.prefill_rows,
      max_length=config.budgets.window,
      dtype=config.model.dtype,
      max_support=config.sampling.recorded_support,
  )


def build_sampler(
    config: schema.ExperimentConfig, policy: Policy
) -> sampler_lib.JetStreamSampler:
  """The decode engine and its weight store."""
  engine = build_engine(config, policy.decoder, policy.mesh)
  return sampler_lib.JetStreamSampler(engine, build_store(config, engine))


def build_store(
    config: schema.ExperimentConfig, engine: engine_lib.PolicyEngine
) -> weights_lib.PolicyStore:
  """The weights that an engine serves."""
  return weights_lib.PolicyStore(
      decoder_config=engine.decoder_config,
      weight_shardings=engine.weight_shardings,
      dtype=engine.dtype,
      replace=config.sampler.publish == 'replace',
  )


def check_workdir(
    workdir: str, config: schema.ExperimentConfig, *, folder: str
) -> schema.ExperimentConfig | None:
  """The config that a used work directory was started with.

  Args:
    workdir: as the user names it.
    config: of this run.
    folder: where its files are.

  Returns:
    None for a fresh directory.

  Raises:
    ValueError: it belongs to another experiment or other settings.
  """
  path = os.path.join(folder, 'config.json')
  if not os.path.exists(path):
    return None
  before = loading.load(path)
  if before.name != config.name:
    raise ValueError(
        f'--workdir={workdir}: it holds experiment {before.name!r}, not'
        f' {config.name!r}; choose another directory.'
    )
  # How long to go on may change when a run is taken up again, and what is
  # looked at.
  free = {
      'steps', 'time_limit_s', 'token_limit', 'log.profile_first',
      'log.profile_last',
  }
  names = [n for n in loading.differences(before, config) if n not in free]
  if names:
    raise ValueError(
        f'--workdir={workdir}: its run was started with other settings:'
        f' {", ".join(names)}; choose another directory.'
    )
  return before
