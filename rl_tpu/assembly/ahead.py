"""Everything that a run would compile and hold, from abstract shapes.

The learner and the engine are those of `policy`: what is planned is what runs.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from rl_tpu.assembly import policy as policy_lib
from rl_tpu.config import schema
from rl_tpu.config import validation
from rl_tpu.learner import programs as learner_programs
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder as decoder_lib
from rl_tpu.models import huggingface
from rl_tpu.rollout import joins
from rl_tpu.sharding import rules
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import batch as batch_lib
from rl_tpu.types import programs as programs_lib


@dataclasses.dataclass(frozen=True)
class Ahead:
  """A run that was assembled but not started.

  Attributes:
    config: the experiment.
    decoder: the model's settings.
    mesh: the run's mesh.
    sizes: of the batch that was assumed.
    programs: what a training step calls, in its order.
    resident: name -> abstract arrays that stay on the devices.
  """

  config: schema.ExperimentConfig
  decoder: model_config.DecoderConfig
  mesh: jax.sharding.Mesh
  sizes: batch_lib.Sizes
  programs: tuple[programs_lib.Program, ...]
  resident: Mapping[str, Any]


def assemble(
    config: schema.ExperimentConfig,
    devices: Sequence[jax.Device],
    *,
    sizes: batch_lib.Sizes | None = None,
    model: model_config.DecoderConfig | None = None,
) -> Ahead:
  """Assembles a run for devices that need not be there.

  Of the model folder only config.json is read, and the tokenizer if it is
  there.

  Args:
    config: the experiment.
    devices: of a topology or of this machine.
    sizes: of the batch; by default `batch_sizes`.
    model: another than the folder's.

  Raises:
    ValueError: whatever the run would refuse at its start.
  """
  validation.validate(config, verb='plan')
  mesh = policy_lib.build_mesh(config, devices)
  decoder = model or _decoder(config)
  shapes = decoder_lib.shapes_of(decoder)
  axes = decoder_lib.logical_axes(decoder)
  params = rules.abstract(shapes, rules.param_shardings(axes, mesh, shapes))
  learner = policy_lib.build_learner(config, decoder, mesh)
  state = learner_programs.abstract_state(
      learner, params, with_critic=config.advantage.estimator == 'gae'
  )
  reference = None
  if config.kl.in_ != 'none':
    reference = state.base or state.policy_params
  sizes = sizes or batch_sizes(config)
  engine = policy_lib.build_engine(config, decoder, mesh)
  store = policy_lib.build_store(config, engine)
  sampling = engine.programs()
  programs = (
      *sampling,
      *learner_programs.of_update(
          learner, state, sizes, config=config, reference=reference
      ),
      store.program(state.policy_params),
  )
  return Ahead(
      config,
      decoder,
      mesh,
      sizes,
      programs,
      _resident(learner, state, reference, sampling[0].holds, programs),
  )


def batch_sizes(config: schema.ExperimentConfig) -> batch_lib.Sizes:
  """A batch in which every rollout fills one row: a whole window each."""
  batching = config.batching
  rollouts = batching.tasks_per_batch * config.group.size
  step = batching.rows_per_microbatch * batching.minibatches
  table = joins.table_size(rollouts)
  return batch_lib.Sizes(
      rows=math.ceil(rollouts / step) * step,
      length=batching.row_length,
      segments=table,
      rollouts=table,
      support=config.sampling.recorded_support,
  )


def _decoder(config: schema.ExperimentConfig) -> model_config.DecoderConfig:
  folder = pathlib.Path(config.model.path)
  decoder = huggingface.read_config(folder)
  if (folder / 'tokenizer.json').is_file():
    tokenizer = tokenizer_lib.Tokenizer.from_folder(config.model.path)
    return policy_lib.decoder_settings(config, decoder, tokenizer)
  return dataclasses.replace(
      decoder, lora=policy_lib.adapter_settings(config.model)
  )


def _resident(learner, state, reference, sampling, programs) -> dict[str, Any]:
  """What stays on the devices; what waits at the host is not there."""
  stays = lambda part: not learner.residence.at_host(part)
  held = {'actor': state.actor.params, **sampling}
  if stays('optimizers'):
    held['actor_optimizer'] = state.actor.optimizer
  if state.critic is not None:
    if stays('critic'):
      held['critic'] = state.critic.params
    if stays('optimizers'):
      held['critic_optimizer'] = state.critic.optimizer
  if state.base is not None:
    held['base'] = state.base
  elif reference is not None and stays('reference'):
    held['reference'] = reference
  actor = next(p for p in programs if p.name == 'actor gradient')
  # All microbatches wait on the devices.
  held['batch'] = [actor.holds['batch']] * actor.calls
  return held
