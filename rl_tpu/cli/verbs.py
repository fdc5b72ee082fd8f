"""The verbs: what each reads, checks and calls.

JAX is imported inside the verbs, after flags and settings are checked, so that
a mistake is shown at once.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import rich.console

from rl_tpu.checkpointing import contents
from rl_tpu.cli import arguments
from rl_tpu.cli import checking_data
from rl_tpu.cli import folders
from rl_tpu.cli import inspecting
from rl_tpu.cli import planning
from rl_tpu.cli import score_input
from rl_tpu.cli import showing_dumps
from rl_tpu.cli import stopping
from rl_tpu.cli import tables
from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.config import validation

Values = Mapping[str, Any]


class Phase:
  """Whether a command still prepares or already works.

  Attributes:
    begun: False while a ValueError is a user's mistake; True afterwards, when
      it is a fault of the program.
  """

  def __init__(self) -> None:
    """A command starts out preparing."""
    self.begun = False

  def begin(self) -> None:
    """Called once everything is built and checked."""
    self.begun = True


@dataclasses.dataclass(frozen=True)
class Verb:
  """A command.

  Attributes:
    name: the word on the command line.
    help: one sentence.
    flags: what it takes.
    run: does it and returns the exit code.
  """

  name: str
  help: str
  flags: tuple[arguments.Flag, ...]
  run: Callable[[Values, Phase], int]


_EXPERIMENT = arguments.Flag(
    'experiment', 'experiment file (a module with get_config()).', required=True
)
_WORKDIR = arguments.Flag(
    'workdir', 'directory of the run; a used one is resumed.', required=True
)
_SET = arguments.Flag(
    'set', 'override path=value, for example gae.gamma=0.99.', repeated=True
)

_OUT = arguments.Flag(
    'out', 'Hugging Face folder to write; new or empty.', required=True
)


def settings(values: Values, verb: str) -> schema.ExperimentConfig:
  """The experiment with its overrides, checked.

  Raises:
    ValueError: any misuse that needs no device to be found.
  """
  config = loading.load_experiment(values['experiment'])
  config = overrides.apply(config, values['set'])
  validation.validate(config, verb=verb)
  return config


def _train(values: Values, phase: Phase) -> int:
  config = settings(values, 'train')
  allow_partial = contents.named(values['allow_partial'])
  from rl_tpu import trainer
  from rl_tpu.sharding import hosts

  with stopping.StopAsked() as stop:
    summary = trainer.train(
        config,
        values['workdir'],
        stop,
        on_start=phase.begin,
        override_config=values['override_config'] == 'yes',
        allow_partial=allow_partial,
        interrupt=stop,
    )
  if hosts.here().is_lead:
    console().print(tables.training(summary))
  if summary['stopped'] == 'signal':
    # Another process of the run may have been told.
    return stop.exit_code or 128 + signal.SIGTERM
  return 0


def _sft(values: Values, phase: Phase) -> int:
  config = settings(values, 'sft')
  from rl_tpu import sft

  with stopping.StopAsked() as stop:
    summary = sft.run(
        config, values['workdir'], stop=stop, on_start=phase.begin
    )
  console().print(tables.supervised(summary))
  return stop.exit_code


def _evaluate(values: Values, phase: Phase) -> int:
  workdir = pathlib.Path(values['workdir'])
  config = overrides.apply(loading.load(workdir / 'config.json'), values['set'])
  validation.validate(config, verb='evaluate')
  from rl_tpu.assembly import judging
  from rl_tpu.metrics import noise as noise_lib

  noise = noise_lib.VerifierNoise()
  summary = judging.evaluate(
      config,
      str(workdir),
      checkpoint=values['checkpoint'],
      on_start=phase.begin,
      on_rollouts=noise.record,
  )
  console().print(tables.evaluation(summary, noise=noise.disagreement()))
  return 0


def _inspect(values: Values, phase: Phase) -> int:
  del phase  # Reading is all it does: a ValueError is about the files.
  if values['dump']:
    showing_dumps.show(values['dump'], console())
    return 0
  if not values['workdir']:
    raise ValueError('--workdir is missing: directory of the run.')
  chosen = inspecting.choose(
      values['workdir'],
      step=values['step'],
      rollout_id=values['rollout'],
      order=values['order'],
      limit=values['limit'],
  )
  decode = inspecting.decoder(values['workdir'])
  inspecting.show(chosen, decode, console(), whole=bool(values['rollout']))
  return 0


def _score(values: Values, phase: Phase) -> int:
  rows = score_input.read(values['input'])
  validation.check_model_folder(
      values['model'], name='--model', files=('config.json',)
  )
  from rl_tpu.alignment import score
  from rl_tpu.models import huggingface

  config, params = huggingface.load(values['model'])
  score_input.check_ids(
      values['input'],
      rows,
      vocab_size=config.vocab_size,
      max_length=config.max_length,
  )
  phase.begin()
  for row in rows:
    line = score.score(params, config, row.ids)
    sys.stdout.write(json.dumps(line, allow_nan=False) + '\n')
    sys.stdout.flush()
  return 0


def _check_data(values: Values, phase: Phase) -> int:
  del phase  # Reading is all it does: a ValueError is about the files.
  return checking_data.run(values, console())


def _config(values: Values, phase: Phase) -> int:
  del phase  # Reading is all it does: a ValueError is about the settings.
  config = loading.load_experiment(values['experiment'])
  config = overrides.apply(config, values['set'])
  # No more: the model may be on another machine.
  validation.check_types(config)
  print(json.dumps(loading.to_dict(config), indent=2))
  return 0


def _plan(values: Values, phase: Phase) -> int:
  del phase  # A ValueError is about settings or the topology to the end.
  # Whatever devices this machine has, the plan is made beside them.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  return planning.run(settings(values, 'plan'), values, console())


def _export(values: Values, phase: Phase) -> int:
  return folders.export(values, phase.begin, console())


def _import_llama2c(values: Values, phase: Phase) -> int:
  del phase  # A ValueError is about the files to the end.
  return folders.import_llama2c(values, console())


def _import_gguf(values: Values, phase: Phase) -> int:
  del phase  # A ValueError is about the file to the end.
  return folders.import_gguf(values, console())


def console() -> rich.console.Console:
  """Standard output; wide enough for a transcript where it is no terminal."""
  made = rich.console.Console()
  return made if made.is_terminal else rich.console.Console(width=120)


VERBS = (
    Verb(
        'train',
        'trains an agent by reinforcement learning, or resumes it.',
        (
            _EXPERIMENT,
            _WORKDIR,
            _SET,
            arguments.Flag(
                'override_config',
                'resume with settings that change results.',
                'no',
                choices=('yes', 'no'),
            ),
            arguments.Flag(
                'allow_partial',
                'part that the checkpoint may lack and that begins anew'
                ' (or a comma list).',
                repeated=True,
            ),
        ),
        _train,
    ),
    Verb(
        'sft',
        'makes a start by imitating scripted rollouts.',
        (_EXPERIMENT, _WORKDIR, _SET),
        _sft,
    ),
    Verb(
        'evaluate',
        'judges a checkpoint of a run on held-out tasks.',
        (
            dataclasses.replace(_WORKDIR, help='directory of a finished run.'),
            arguments.Flag(
                'checkpoint',
                'which checkpoint of the run.',
                'best',
                choices=('best', 'latest'),
            ),
            _SET,
        ),
        _evaluate,
    ),
    Verb(
        'inspect',
        'shows transcripts of a run, or a dump, in the terminal.',
        (
            dataclasses.replace(
                _WORKDIR, help='directory of the run.', required=False
            ),
            arguments.Flag(
                'dump', 'dump of a skipped step (dumps/*.npz).', ''
            ),
            arguments.Flag('step', 'update; 0 is the last one stored.', 0),
            arguments.Flag(
                'rollout',
                'id of one rollout, with long texts whole; empty is any.',
                '',
            ),
            arguments.Flag(
                'order',
                'which rollouts come first.',
                'first',
                choices=('first', 'best', 'worst'),
            ),
            arguments.Flag('limit', 'rollouts to show at most.', 3),
        ),
        _inspect,
    ),
    Verb(
        'score',
        "compares the trainer's and the sampler's log-probabilities.",
        (
            arguments.Flag('model', 'Hugging Face folder.', required=True),
            arguments.Flag(
                'input', 'JSONL file of rows {"ids": [...]}.', required=True
            ),
        ),
        _score,
    ),
    Verb(
        'check-data',
        "reads a file of tasks and names the rows that can't be used.",
        checking_data.FLAGS,
        _check_data,
    ),
    Verb(
        'plan',
        'compiles a run for a TPU topology and says whether it fits.',
        (_EXPERIMENT, *planning.FLAGS, _SET),
        _plan,
    ),
    Verb(
        'config',
        'prints the settings of an experiment as JSON, overrides applied.',
        (_EXPERIMENT, _SET),
        _config,
    ),
    Verb(
        'export',
        'writes a checkpoint of a run as a Hugging Face folder.',
        (
            dataclasses.replace(_WORKDIR, help='directory of the run.'),
            arguments.Flag(
                'checkpoint', 'best, latest or the number of an update.', 'best'
            ),
            _OUT,
            arguments.Flag(
                'dtype',
                'of the numbers in the files.',
                'float32',
                choices=('float32', 'bfloat16'),
            ),
            arguments.Flag(
                'critic',
                'write the value head, and its backbone, beside the model.',
                'yes',
                choices=('yes', 'no'),
            ),
            arguments.Flag(
                'lora',
                'adapters of a run: merged into the model, or alone (peft).',
                'merged',
                choices=('merged', 'peft'),
            ),
        ),
        _export,
    ),
    Verb(
        'import-llama2c',
        'makes a Hugging Face folder from a checkpoint of llama2.c.',
        (
            arguments.Flag(
                'checkpoint', 'float32 .bin file (version 0).', required=True
            ),
            arguments.Flag('tokenizer', 'tokenizer.bin.', required=True),
            _OUT,
        ),
        _import_llama2c,
    ),
    Verb(
        'import-gguf',
        'makes a Hugging Face folder from a GGUF file.',
        (
            arguments.Flag('checkpoint', 'GGUF file.', required=True),
            _OUT,
        ),
        _import_gguf,
    ),
)
