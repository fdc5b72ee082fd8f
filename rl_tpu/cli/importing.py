"""Makes a Hugging Face folder from the files of another project."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers

from rl_tpu.models import importing
from rl_tpu.models import llama2c as llama2c_model
from rl_tpu.text import files
from rl_tpu.text import gguf_fields
from rl_tpu.text import llama2c as llama2c_text

OnWritten = Callable[[int, int], None]
_WITH_IDS = ('bos_token', 'eos_token', 'pad_token')


def llama2c(
    checkpoint: str, tokenizer: str, out: pathlib.Path, on_written: OnWritten
) -> None:
  """From a checkpoint of llama2.c and its tokenizer.

  A text ends with the token that begins one: models of that project were
  trained on texts joined by it.

  Raises:
    ValueError: a file of another form, or two that do not belong together.
  """
  config, tensors = llama2c_model.read(checkpoint)
  made = llama2c_text.read(tokenizer, config.vocab_size)
  begin, unknown = llama2c_text.BEGIN, llama2c_text.UNKNOWN
  special = {
      'bos_token': begin,
      'eos_token': begin,
      'unk_token': unknown,
      'pad_token': unknown,
  }
  files.write(out, made, special=special, max_length=config.max_length)
  importing.write(
      out,
      config,
      tensors,
      special_ids=_ids(made, special),
      on_written=on_written,
  )


def gguf(checkpoint: str, out: pathlib.Path, on_written: OnWritten) -> None:
  """From a GGUF file, which holds its tokenizer and chat template.

  Raises:
    ValueError: a file of another form, or a model that is not covered.
  """
  # Of the extra `gguf`.
  from rl_tpu.models import gguf_files

  config, tensors, fields = gguf_files.read(checkpoint)
  try:
    made = gguf_fields.read(fields)
    special = gguf_fields.special_tokens(fields)
  except ValueError as error:
    raise ValueError(f'{checkpoint}: {error}') from None
  template = fields.get(gguf_fields.CHAT_TEMPLATE, files.PLAIN_TEMPLATE)
  files.write(
      out,
      made,
      special=special,
      max_length=config.max_length,
      chat_template=template,
  )
  ids = _ids(made, special)
  ends = gguf_fields.end_ids(fields)
  if len(ends) > 1:
    ids['eos_token_id'] = ends
  importing.write(
      out, config, tensors, special_ids=ids, on_written=on_written
  )


def _ids(
    made: tokenizers.Tokenizer, special: Mapping[str, str]
) -> dict[str, Any]:
  """Ids of special tokens by their names in config.json."""
  return {
      f'{name}_id': made.token_to_id(special[name])
      for name in _WITH_IDS
      if name in special
  }
