"""Writes a checkpoint of a run as a Hugging Face folder."""

from collections.abc import Callable
import dataclasses
import json
import pathlib
import shutil
from typing import Any

from rl_tpu.assembly import ends
from rl_tpu.assembly import policy as policy_lib
from rl_tpu.checkpointing import contents
from rl_tpu.checkpointing import store as store_lib
from rl_tpu.config import schema
from rl_tpu.learner import networks
from rl_tpu.learner import programs
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.models import lora
from rl_tpu.models import peft
from rl_tpu.models import tensor_files
from rl_tpu.models import value_head
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.text import chat
from rl_tpu.text import end_tokens
from rl_tpu.text import tokenizer as tokenizer_lib

GENERATION, TEMPLATE = 'generation_config.json', 'chat_template.jinja'
# What a folder may hold beside the model, and training does not change.
_KEPT = (
    GENERATION,
    TEMPLATE,
    'tokenizer.json',
    'tokenizer_config.json',
    'special_tokens_map.json',
    'added_tokens.json',
    'tokenizer.model',
    'vocab.json',
    'merges.txt',
)


@dataclasses.dataclass(frozen=True)
class Source:
  """A checkpoint that is ready to be written.

  Attributes:
    config: of the run.
    step: of the checkpoint.
    decoder: the model's settings.
    params: the actor's, adapters merged where that was asked for.
    critic: None where the run has none, or it is not wanted.
    adapters: of a run that trained them: the settings with them, and their
      tree.
  """

  config: schema.ExperimentConfig
  step: int
  decoder: model_config.DecoderConfig
  params: decoder.Params
  critic: value_head.Pretrained | None
  adapters: tuple[model_config.DecoderConfig, decoder.Params] | None = None


def read(
    config: schema.ExperimentConfig,
    workdir: str | pathlib.Path,
    *,
    checkpoint: str,
    with_critic: bool,
    merged: bool = True,
) -> Source:
  """Reads the networks of a checkpoint; optimizer states stay on disk.

  Args:
    config: of the run.
    workdir: of the run.
    checkpoint: best (by held-out success), latest or a step.
    with_critic: read the critic too, where there is one.
    merged: put adapters into the base; without it, only `write_adapters` has
      what it needs.

  Raises:
    ValueError: there is no such checkpoint, or it is damaged.
  """
  store = store_lib.CheckpointStore(
      str(pathlib.Path(workdir) / 'checkpoints'), config.checkpoint
  )
  try:
    step = _step(store, workdir, checkpoint)
    settings = huggingface.read_config(config.model.path)
    # Whatever devices there are here: a checkpoint has no mesh of its own.
    mesh = mesh_lib.make_mesh(schema.MeshConfig(data=1, fsdp=-1, tensor=1))
    adapted = dataclasses.replace(
        settings, lora=policy_lib.adapter_settings(config.model)
    )
    learner = policy_lib.build_learner(config, adapted, mesh)
    with_gae = config.advantage.estimator == 'gae'
    fresh = programs.abstract_state(
        learner, decoder.shapes_of(adapted), with_critic=with_gae
    )
    like = {'actor': fresh.actor.params}
    if with_critic and fresh.critic is not None:
      like['critic'] = fresh.critic.params
    found, _ = store.restore(step, like, without=contents.HOST)
  finally:
    store.close()
  actor = found['actor']
  params, adapters = networks.policy_params(actor), None
  whole = lambda tree: tree
  if adapted.lora is not None:
    adapters = adapted, params
  if adapters is not None and merged:
    _, base = huggingface.load(config.model.path, mesh=mesh)
    whole = lambda tree: lora.merge(lora.join(base, tree), adapted.lora)
  head, backbone = actor.get(networks.HEAD), None
  if 'critic' in found:
    head = found['critic'][networks.HEAD]
    backbone = whole(found['critic']['backbone'])
  critic = None
  if with_critic and head is not None:
    bins = config.critic.head == 'hl_gauss'
    limits = (config.critic.vmin, config.critic.vmax) if bins else None
    critic = value_head.Pretrained(head, backbone, limits)
  return Source(config, step, settings, whole(params), critic, adapters)


def write(
    source: Source,
    out: str | pathlib.Path,
    *,
    dtype: str = 'float32',
    on_written: Callable[[int, int], None] = lambda done, total: None,
) -> None:
  """Writes the folder: model, tokenizer, chat template and value head.

  Args:
    source: what `read` found.
    out: a folder that is new or empty.
    dtype: of the model's numbers: float32 or bfloat16.
    on_written: called after every tensor with the bytes so far and in all.
  """
  out, base = pathlib.Path(out), pathlib.Path(source.config.model.path)
  content = tensor_files.read_json(base / 'config.json')
  how: dict[str, Any] = dict(
      config_json=content, dtype=dtype, on_written=on_written
  )
  huggingface.save(out, source.decoder, source.params, **how)
  if source.critic is not None:
    value_head.save(out, source.decoder, source.critic, **how)
  _write_texts(source.config, out)


def write_adapters(source: Source, out: str | pathlib.Path) -> None:
  """Writes the adapters in PEFT's layout, with the tokenizer beside them."""
  peft.save(out, *source.adapters, base=str(source.config.model.path))
  _write_texts(source.config, pathlib.Path(out))


def _write_texts(config, out: pathlib.Path) -> None:
  """Tokenizer, chat template and where generation ends, as in the run."""
  base = pathlib.Path(config.model.path)
  for name in _KEPT:
    if (base / name).is_file():
      shutil.copy(base / name, out / name)
  if config.model.chat_template:
    shutil.copy(config.model.chat_template, out / TEMPLATE)
  template = chat.ChatTemplate.from_folder(
      out, variables=config.model.template_variables
  )
  if config.model.template_variables:
    # Whoever names none gets the prompts that the model was trained on.
    (out / TEMPLATE).write_text(template.text, encoding='utf-8')
  tokenizer = tokenizer_lib.Tokenizer.from_folder(config.model.path)
  found = ends.ids(config, tokenizer)
  if end_tokens.read_object(out / GENERATION).get('eos_token_id') is None:
    text = json.dumps(_generation(config, out, found), indent=2)
    (out / GENERATION).write_text(text + '\n', encoding='utf-8')
  ends.write(out, found, tokenizer, template)


def _step(store, workdir, checkpoint: str) -> int:
  steps = store.steps()
  if not steps:
    raise ValueError(
        f'--workdir={workdir}: it holds no checkpoint; train it first.'
    )
  if checkpoint in ('best', 'latest'):
    return store.step(checkpoint)
  if not checkpoint.isdecimal() or int(checkpoint) not in steps:
    raise ValueError(
        f'--checkpoint={checkpoint}: use best, latest or one of the steps'
        f' {", ".join(map(str, steps))}.'
    )
  return int(checkpoint)


def _generation(config, out: pathlib.Path, found) -> dict[str, Any]:
  """Where generation ends: as in the run."""
  base = pathlib.Path(config.model.path)
  content = tensor_files.read_json(base / 'config.json')
  made = {
      name: content[name]
      for name in ('bos_token_id', 'pad_token_id')
      if content.get(name) is not None
  }
  kept = end_tokens.read_object(out / GENERATION)
  return {**made, **kept, 'eos_token_id': list(found)}
