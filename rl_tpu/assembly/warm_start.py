"""The parts of a supervised warm start."""

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rl_tpu.assembly import parts
from rl_tpu.assembly import policy as policy_lib
from rl_tpu.config import fields
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.learner import state as state_lib
from rl_tpu.losses import statistics
from rl_tpu.models import config as model_config
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.rollout import admission
from rl_tpu.rollout import batching
from rl_tpu.rollout import session as session_lib
from rl_tpu.sampler import types as sampler_types
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import placement
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.types import batch as batch_lib
from rl_tpu.verifiers import protocol as verifiers


class Script:
  """Answers sampling requests with a scripted policy instead of a model."""

  def __init__(
      self, policy: Any, tokenizer: tokenizer_lib.Tokenizer, seed: int
  ):
    """Args: the scripted policy, its tokenizer, the run's seed."""
    self._policy = policy
    self._tokenizer = tokenizer
    self._seed = seed
    self.environments: dict[str, Any] = {}

  def reply(
      self, ask: session_lib.Sample, environment: Any
  ) -> sampler_types.Completion:
    """What the script says; its log-probabilities are unknown and 0."""
    kind = 'summary' if ask.is_summary else 'turn'
    seed = session_lib.derive_seed(self._seed, ask.request.request_id)
    text = self._policy.reply(environment, kind, np.random.default_rng(seed))
    token = self._tokenizer.encode(text, follows=True)
    token = token[: ask.request.params.max_tokens]
    stopped = int(token[-1]) in ask.request.params.stop_ids
    return sampler_types.Completion(
        request_id=ask.request.request_id,
        prompt=ask.request.prompt,
        token=token,
        logprob=np.zeros(len(token), np.float32),
        version=np.zeros(len(token), np.int32),
        finish_reason='stop' if stopped else 'length',
        params=ask.request.params,
    )


@dataclasses.dataclass
class WarmStart:
  """Everything that `sft.run` calls."""

  config: schema.ExperimentConfig
  world: parts.World
  decoder: model_config.DecoderConfig
  learner: learner_lib.Learner
  actor: state_lib.Trainable
  script: Script
  tasks: Any
  folder: str

  def demonstrate(self, step: int) -> list[Any]:
    """Fresh scripted rollouts of one step."""
    count = self.config.sft.rollouts_per_step
    make = self.world.sessions(self.config.sampling, 'script')
    rollouts = []
    for index in range(count):
      number = (step - 1) * count + index
      task = self.tasks[number % len(self.tasks)]
      seed = session_lib.derive_seed(self.config.seed, 'sft', number)
      job = session_lib.Job(f'sft-{number}', task, seed)
      rollouts.append(self._play(make(job)))
    return rollouts

  def _play(self, session: session_lib.Session) -> Any:
    environment = loading.construct(
        self.config.environment.target,
        self.config.environment.settings,
        setting='environment',
    )
    generator = session.run()
    answer = None
    while True:
      try:
        ask = generator.send(answer)
      except StopIteration as stop:
        return stop.value
      if isinstance(ask, session_lib.Sample):
        answer = self.script.reply(ask, environment)
      elif isinstance(ask, session_lib.Call):
        answer = getattr(environment, ask.method)(*ask.args)
      else:
        # Imitation needs no score: 0 keeps the record whole.
        answer = _NO_SCORE

  def step(self, step: int) -> dict[str, float]:
    """One optimizer step on fresh demonstrations."""
    batch = batching.build(
        admission.admit_all(self.demonstrate(step)),
        batching=dataclasses.replace(self.config.batching, minibatches=1),
        gae=self.config.gae,
        critic=self.config.critic,
        loss=self.config.loss,
        compaction=self.config.compaction,
    )
    zeros = np.zeros(batch.segments.rows.token_BT.shape, np.float32)
    part = []
    for start, stop in batch.minibatches[0]:
      rows = jax.tree.map(lambda x: x[start:stop], batch.segments.rows)
      part.append(
          self.learner.place_rows(
              batch_lib.Minibatch(
                  rows, *[zeros[start:stop]] * 5,
                  batch.policy_weight_BT[start:stop], zeros[start:stop],
              )
          )
      )
    self.actor, stats, report = self.learner.update_actor(self.actor, part)
    values = statistics.values(placement.fetch(stats))
    return {
        'loss/nll': values['nll'],
        'policy/entropy': values['entropy'],
        'policy/grad_norm': float(report.gradient_norm),
        'perf/packing_waste': batch.counts['waste'],
    }

  def export(self, out: str) -> str:
    """Writes the Hugging Face folder."""
    names = ('tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja')
    files = [os.path.join(self.folder, name) for name in names]
    huggingface.save(
        out,
        self.decoder,
        placement.fetch(self.actor.params),
        tokenizer_files=[f for f in files if os.path.exists(f)],
    )
    return out

  def close(self) -> None:
    """Ends worker processes."""
    self.world.close()


_NO_SCORE = verifiers.Score(0.0, False)


def _named(setting: str, target: str) -> Any:
  try:
    return loading.import_target(target)
  except ValueError as error:
    raise ValueError(f'{setting}: {error}') from error


def _decoder_settings(
    named: Mapping[str, Any], size: int
) -> model_config.DecoderConfig:
  """The new model's settings; its vocabulary is the tokenizer's."""
  known = [f.name for f in dataclasses.fields(model_config.DecoderConfig)]
  for name in named:
    if name not in known:
      raise ValueError(
          f'sft.model.{name}: there is no such setting of a model; did you mean'
          f' {fields.nearest(name, known)}?'
      )
  return model_config.DecoderConfig(
      vocab_size=size, usable_vocab=size, **named
  )


def build(config: schema.ExperimentConfig) -> WarmStart:
  """Builds a new model and the scripted world around it.

  Raises:
    ValueError: a setting that cannot work.
  """
  sft = config.sft
  mesh = mesh_lib.make_mesh(config.mesh)
  folder = tempfile.mkdtemp(prefix='rl_tpu_tokenizer_')
  _named('sft.tokenizer', sft.tokenizer)(folder)
  tokenizer = tokenizer_lib.Tokenizer.from_folder(folder)
  template = chat.ChatTemplate.from_folder(
      folder, variables=config.model.template_variables
  )
  decoder_config = _decoder_settings(sft.model, tokenizer.size)
  world = parts.build_world(config, tokenizer, template)
  params = decoder.init_params(decoder_config, jax.random.key(config.seed))
  learner = policy_lib.build_learner(
      dataclasses.replace(config, actor_optimizer=sft.optimizer),
      decoder_config,
      mesh,
      supervised=True,
  )
  actor = learner.init_state(params, with_critic=False).actor
  policy = loading.construct(sft.target, sft.settings, setting='sft')
  return WarmStart(
      config, world, decoder_config, learner, actor,
      Script(policy, tokenizer, config.seed), world.tasks('train'), folder,
  )


