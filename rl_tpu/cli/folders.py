"""The verbs that write a model folder: export and the importers."""

import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import rich.console

from rl_tpu.cli import progress
from rl_tpu.cli import tables
from rl_tpu.config import loading
from rl_tpu.config import validation

Values = Mapping[str, Any]


def export(
    values: Values, begin: Callable[[], None], console: rich.console.Console
) -> int:
  """Writes a checkpoint of a run.

  Args:
    values: of the flags workdir, checkpoint, out, dtype, critic and lora.
    begin: called when everything is read and checked.
    console: shows what was written.
  """
  workdir = pathlib.Path(values['workdir'])
  config = loading.load(workdir / 'config.json')
  validation.check_model_folder(config.model.path)
  out = new_folder(values['out'])
  from rl_tpu.assembly import exporting

  adapters_alone = values['lora'] == 'peft'
  if adapters_alone and not config.model.lora.rank:
    raise ValueError(
        '--lora=peft: the run has no adapters (model.lora.rank = 0); use'
        ' --lora=merged.'
    )
  source = exporting.read(
      config,
      workdir,
      checkpoint=values['checkpoint'],
      with_critic=values['critic'] == 'yes' and not adapters_alone,
      merged=not adapters_alone,
  )
  begin()
  if adapters_alone:
    exporting.write_adapters(source, out)
  else:
    with progress.Bytes('writing') as bar:
      exporting.write(source, out, dtype=values['dtype'], on_written=bar.show)
  console.print(tables.folder(out, f'checkpoint {source.step} of {workdir}'))
  return 0


def import_llama2c(values: Values, console: rich.console.Console) -> int:
  """Makes a folder of the flags checkpoint, tokenizer and out."""
  out = new_folder(values['out'])
  from rl_tpu.cli import importing

  with progress.Bytes('writing') as bar:
    importing.llama2c(values['checkpoint'], values['tokenizer'], out, bar.show)
  console.print(tables.folder(out, values['checkpoint']))
  return 0


def import_gguf(values: Values, console: rich.console.Console) -> int:
  """Makes a folder of the flags checkpoint and out."""
  out = new_folder(values['out'])
  if importlib.util.find_spec('gguf') is None:
    raise ValueError(
        "import-gguf needs the package gguf: pip install 'rl-tpu[gguf]' (from a"
        ' checkout: bash launch/setup.sh gguf).'
    )
  from rl_tpu.cli import importing

  with progress.Bytes('writing') as bar:
    importing.gguf(values['checkpoint'], out, bar.show)
  console.print(tables.folder(out, values['checkpoint']))
  return 0


def new_folder(out: str) -> pathlib.Path:
  """The folder to write; it may exist, but empty.

  Raises:
    ValueError: it holds something, or it is a file.
  """
  folder = pathlib.Path(out)
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'--out={out}: it is a file; name a new folder.')
  if folder.is_dir() and any(folder.iterdir()):
    raise ValueError(f'--out={out}: it is not empty; name a new folder.')
  return folder
