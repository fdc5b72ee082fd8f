"""The model's side of a run: mesh, decoder, learner, engine and its weights.

Everything is checked before a device computes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from rl_tpu.assembly import ends
from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder as decoder_lib
from rl_tpu.models import execution as execution_lib
from rl_tpu.models import huggingface
from rl_tpu.models import lora
from rl_tpu.models import splash as splash_lib
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sampler import sampler as sampler_lib
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.sharding import controller
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib


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
    ValueError: several processes, a mesh that the devices or the rows do not
      fit, a folder that lacks a file or a tensor, a variable that the chat
      template does not read, a stop token that the vocabulary lacks, a
      tokenizer larger than the model.
  """
  controller.start()
  mesh = build_mesh(config)
  tokenizer = tokenizer_lib.Tokenizer.from_folder(config.model.path)
  template = chat.ChatTemplate.from_folder(
      config.model.path,
      file=config.model.chat_template,
      variables=config.model.template_variables,
  )
  if jax.process_index() == 0:
    ends.check(config, tokenizer, template)
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
  tokens = batching.rows_per_microbatch * batching.row_length
  if tokens % mesh.size:
    raise ValueError(
        f'batching.row_length = {batching.row_length}: the'
        f' {batching.rows_per_microbatch} rows of a microbatch hold {tokens}'
        f' tokens, which the {mesh.size} devices do not divide; use a multiple'
        f' of mesh.tensor = {mesh.shape["tensor"]}.'
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
    if jax.process_count() > 1:
      raise ValueError(
          f'sampler.devices = {config.sampler.devices}: with'
          f' {jax.process_count()} processes each of them decodes on its own'
          ' devices too; use sampler.devices=0.'
      )
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
  return sampler_lib.JetStreamSampler(
      engine,
      build_store(config, engine),
      deterministic=config.sampler.deterministic,
  )


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
