"""Checks of an experiment's settings that need no device and no model.

Every misuse is a ValueError that names the setting, the value and the cure.
What needs the devices, the tokenizer or the model is checked by the rooms that
own them, before anything starts.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from rl_tpu.config import checks
from rl_tpu.config import fault_checks
from rl_tpu.config import fields
from rl_tpu.config import learning_checks
from rl_tpu.config import schema

VERBS = ('train', 'evaluate', 'plan', 'sft')


def validate(config: schema.ExperimentConfig, *, verb: str = 'train') -> None:
  """Refuses settings that cannot work.

  Args:
    config: the settings, overrides applied.
    verb: what is to be done with them: train, evaluate, plan or sft.

  Raises:
    ValueError: the first misuse found, in one line.
  """
  if verb not in VERBS:
    raise ValueError(f'verb={verb!r}: one of {", ".join(VERBS)}.')
  check_types(config)
  for check in _CHECKS:
    check(config)
  _check_targets(config, verb)
  if verb == 'sft':
    _check_sft(config)
  elif verb == 'plan':  # Shapes are all that is read of the model.
    check_model_folder(config.model.path, files=('config.json',))
  else:
    check_model_folder(config.model.path)
  learning_checks.check(config)


def check_types(settings: Any, prefix: str = '') -> None:
  """Refuses a field whose value is not of its annotated type."""
  for name, annotation in fields.annotations(type(settings)).items():
    path = prefix + fields.shown(name)
    value = getattr(settings, name)
    section = fields.section_type(annotation)
    if section is not None and isinstance(value, section):
      check_types(value, path + '.')
      continue
    try:
      fields.check(value, annotation)
    except ValueError as error:
      raise ValueError(f'{path}: {error}') from error


def check_model_folder(
    path: str,
    *,
    name: str = 'model.path',
    files: Sequence[str] = ('config.json', 'tokenizer.json'),
) -> None:
  """Refuses a model folder that cannot be one, before jax is imported."""
  checks.require(path, name, path, 'name a Hugging Face model folder')
  folder = pathlib.Path(path)
  checks.require(
      folder.is_dir(),
      name,
      path,
      'there is no such folder; name a Hugging Face model folder',
  )
  for file in files:
    checks.require(
        (folder / file).is_file(),
        name,
        path,
        f'the folder has no {file}; it must be a Hugging Face model folder',
    )


def _check_run(config: schema.ExperimentConfig) -> None:
  checks.require(config.name, 'name', config.name, 'give the experiment a name')
  checks.within('seed', config.seed, 0, 2**31 - 1)
  checks.require(
      config.steps >= 1,
      'steps',
      config.steps,
      'it must be at least 1 update; set --set steps=N',
  )
  checks.positive('time_limit_s', config.time_limit_s, optional=True)
  checks.positive('token_limit', config.token_limit, optional=True)
  checks.at_least('evaluation.every', config.evaluation.every, 0)
  checks.at_least('evaluation.tasks', config.evaluation.tasks, 1)
  checks.at_least('evaluation.final_tasks', config.evaluation.final_tasks, 0)
  checks.at_least('evaluation.bootstrap', config.evaluation.bootstrap, 1)
  temperatures = config.evaluation.temperatures
  checks.require(
      temperatures
      and min(temperatures) >= 0
      and len(set(temperatures)) == len(temperatures),
      'evaluation.temperatures',
      temperatures,
      'name different temperatures of at least 0; 0 is greedy',
  )
  checks.at_least('checkpoint.every', config.checkpoint.every, 0)
  checks.at_least('checkpoint.keep', config.checkpoint.keep, 1)
  checks.at_least('log.transcripts_every', config.log.transcripts_every, 1)
  checks.at_least('log.histograms_every', config.log.histograms_every, 1)


def _check_mesh(config: schema.ExperimentConfig) -> None:
  sizes = {
      'mesh.data': config.mesh.data,
      'mesh.fsdp': config.mesh.fsdp,
      'mesh.tensor': config.mesh.tensor,
  }
  for name, size in sizes.items():
    checks.require(
        size == -1 or size >= 1,
        name,
        size,
        'an axis has at least 1 device; -1 takes what is left of them',
    )
  open_axes = [name for name, size in sizes.items() if size == -1]
  checks.require(
      len(open_axes) <= 1,
      ' and '.join(open_axes),
      -1,
      'only one axis can take what is left of the devices',
  )
  rows = max(config.mesh.fsdp, 1) * max(config.mesh.data, 1)
  _check_multiple(
      'batching.rows_per_microbatch',
      config.batching.rows_per_microbatch,
      rows,
      'the mesh axes data and fsdp: change it or mesh.data and mesh.fsdp',
  )
  sampler = config.sampler
  checks.at_least('sampler.devices', sampler.devices, 0)
  where = 'the mesh axes data and fsdp: change it or mesh.data and mesh.fsdp'
  if sampler.devices:
    rows, where = sampler.devices, 'sampler.devices: change one of the two'
  _check_multiple('sampler.slots', sampler.slots, rows, where)
  _check_multiple('sampler.prefill_rows', sampler.prefill_rows, rows, where)


def _check_multiple(name: str, value: int, parts: int, where: str) -> None:
  checks.at_least(name, value, 1)
  checks.require(
      value % parts == 0,
      name,
      value,
      f'it is divided over {parts} devices by {where}',
  )


def _check_model(config: schema.ExperimentConfig) -> None:
  checks.one_of('model.dtype', config.model.dtype, 'float32', 'bfloat16')
  checks.one_of(
      'model.remat', config.model.remat, 'none', 'attention', 'layer'
  )
  checks.one_of(
      'model.attention', config.model.attention, 'auto', 'xla', 'splash'
  )
  checks.at_least('model.logits_chunk', config.model.logits_chunk, 1)
  template = config.model.chat_template
  checks.require(
      not template or pathlib.Path(template).is_file(),
      'model.chat_template',
      template,
      "there is no such file; empty takes the model folder's own template",
  )
  for name, value in config.model.template_variables.items():
    checks.require(
        _is_json(value),
        f'model.template_variables.{name}',
        value,
        'use what JSON has: text, numbers, true, false, null, lists, objects',
    )
  lora = config.model.lora
  checks.at_least('model.lora.rank', lora.rank, 0)
  checks.positive('model.lora.alpha', lora.alpha)
  known = schema.LoraConfig().targets
  for target in lora.targets:
    checks.one_of('model.lora.targets', target, *known)
  checks.require(
      lora.targets, 'model.lora.targets', lora.targets,
      'name a module, or train all parameters with model.lora.rank=0',
  )


def _is_json(value: Any) -> bool:
  try:
    json.dumps(value, allow_nan=False)
  except (TypeError, ValueError):
    return False
  return True


def _check_support(config: schema.ExperimentConfig) -> None:
  """Truncated sampling goes with a record that the trainer replays (O5)."""
  sampling = config.sampling
  checks.at_least('sampling.top_k', sampling.top_k, 0)
  checks.require(
      0 < sampling.top_p <= 1,
      'sampling.top_p',
      sampling.top_p,
      'it must be in (0, 1]; 1 is off',
  )
  checks.within('sampling.min_p', sampling.min_p, 0, 1)
  checks.at_least('sampling.max_support', sampling.max_support, 0)
  if not sampling.truncates:
    return
  for name in ('top_k', 'top_p', 'min_p'):
    value = getattr(sampling, name)
    if value == getattr(schema.SamplingConfig(), name):
      continue
    checks.require(
        sampling.max_support > 0 or sampling.allow_unreplayable,
        f'sampling.{name}',
        value,
        'the trainer cannot replay a support that is not recorded, so ratios'
        ' would be wrong (O5); set sampling.max_support above 0, or turn'
        f' {name} off',
    )
  checks.require(
      sampling.top_k <= sampling.max_support or sampling.allow_unreplayable,
      'sampling.top_k',
      sampling.top_k,
      'every support would be larger than sampling.max_support'
      f' ({sampling.max_support}) and every rollout discarded; raise'
      ' sampling.max_support',
  )
  if sampling.allow_unreplayable:
    for name, wanted in (('baseline', 'decoupled'), ('correction', 'none')):
      value = getattr(config.policy, name)
      checks.require(
          value == wanted,
          f'policy.{name}',
          value,
          'with sampling.allow_unreplayable the ratio to the sampler is not'
          f' valid (O5): set policy.{name}={wanted}',
      )


def _check_sampling(config: schema.ExperimentConfig) -> None:
  sampling = config.sampling
  checks.require(
      sampling.temperature > 0,
      'sampling.temperature',
      sampling.temperature,
      'training draws from the policy, so it must be above 0; greedy figures'
      ' come from evaluation.temperatures',
  )
  _check_support(config)
  checks.require(
      all(sampling.stop),
      'sampling.stop',
      sampling.stop,
      'name texts that are single tokens and end a turn, or none: () takes the'
      " model folder's own",
  )
  checks.at_least('sampling.max_turn_tokens', sampling.max_turn_tokens, 1)


def _check_sampler(config: schema.ExperimentConfig) -> None:
  sampler = config.sampler
  checks.at_least('sampler.tokens_per_call', sampler.tokens_per_call, 1)
  checks.at_least('sampler.check_every', sampler.check_every, 0)
  checks.one_of('sampler.sync', sampler.sync, 'drain', 'inflight', 'restart')
  checks.one_of('sampler.publish', sampler.publish, 'keep', 'replace')
  buckets = sampler.prefill_buckets
  checks.require(
      buckets and buckets[0] >= 1 and list(buckets) == sorted(set(buckets)),
      'sampler.prefill_buckets',
      buckets,
      'name prompt lengths in ascending order, for example (64, 128)',
  )


def _check_window(config: schema.ExperimentConfig) -> None:
  window = config.budgets.window
  compaction = config.compaction
  checks.one_of('compaction.mode', compaction.mode, 'off', 'window', 'fixed')
  checks.one_of('compaction.author', compaction.author, 'policy', 'runtime')
  checks.at_least('compaction.every_turns', compaction.every_turns, 1)
  for name in ('lookahead', 'observation_reserve'):
    checks.at_least(f'compaction.{name}', getattr(compaction, name), 0)
  checks.require(
      compaction.carry.count('{summary}') == 1,
      'compaction.carry',
      compaction.carry,
      'it must hold {summary} once: there the summary goes',
  )
  checks.at_least(
      'compaction.max_summary_tokens', compaction.max_summary_tokens, 1
  )
  for name in ('turns', 'tokens', 'wall_s', 'window'):
    checks.positive(
        f'budgets.{name}', getattr(config.budgets, name), optional=True
    )
  if window is None:
    checks.require(
        compaction.mode != 'window',
        'budgets.window',
        window,
        'compaction.mode=window compacts when the window is full: set the'
        ' window, or compaction.mode=off',
    )
    return
  checks.require(
      compaction.mode != 'window' or compaction.lookahead < window,
      'compaction.lookahead',
      compaction.lookahead,
      f'so much is never left of a window of {window} tokens'
      ' (budgets.window), and every turn would be cut off: make it smaller',
  )
  reply = config.sampling.max_turn_tokens
  if compaction.mode != 'off' and compaction.author == 'policy':
    reply = max(reply, compaction.max_summary_tokens)
  checks.require(
      window > reply,
      'budgets.window',
      window,
      f'one reply may take {reply} tokens (sampling.max_turn_tokens,'
      ' compaction.max_summary_tokens): make the window larger or the replies'
      ' shorter',
  )
  checks.require(
      config.sampler.prefill_buckets[-1] >= window - 1,
      'sampler.prefill_buckets',
      config.sampler.prefill_buckets,
      f'a prompt may have {window - 1} tokens (budgets.window={window}): make'
      ' the largest bucket at least that',
  )
  checks.require(
      config.batching.row_length >= window,
      'batching.row_length',
      config.batching.row_length,
      f'a segment may have {window} tokens (budgets.window) and is never cut to'
      ' fit a row: make the row at least that',
  )


def _check_targets(config: schema.ExperimentConfig, verb: str) -> None:
  needed = ['environment', 'tasks']
  needed += [] if verb == 'sft' else ['verifier']
  for section in needed:
    target = getattr(config, section).target
    module, colon, name = target.partition(':')
    checks.require(
        module and colon and name,
        f'{section}.target',
        target,
        'write an import path module:Class',
    )


def _check_sft(config: schema.ExperimentConfig) -> None:
  sft = config.sft
  if sft is None:
    raise ValueError(
        'sft=None: this experiment has no supervised stage; give it an'
        ' SftConfig in the experiment file.'
    )
  checks.at_least('sft.steps', sft.steps, 1)
  checks.require(
      not config.model.lora.rank, 'model.lora.rank', config.model.lora.rank,
      'a new model has no base to put adapters on; use 0',
  )
  checks.at_least('sft.rollouts_per_step', sft.rollouts_per_step, 1)
  checks.require(
      sft.out and not pathlib.Path(sft.out).is_file(), 'sft.out', sft.out,
      'name the folder of the export',
  )
  for name in ('target', 'tokenizer'):
    value = getattr(sft, name)
    checks.require(':' in value, f'sft.{name}', value, 'write an import path')
  learning_checks.check_optimizer('sft.optimizer', sft.optimizer)


_CHECKS: tuple[Callable[[schema.ExperimentConfig], None], ...] = (
    _check_run,
    _check_mesh,
    _check_model,
    fault_checks.check,
    _check_sampling,
    _check_sampler,
    _check_window,
)
