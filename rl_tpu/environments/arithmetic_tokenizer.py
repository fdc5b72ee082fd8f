"""The tokenizer and chat template of the arithmetic environment.

One symbol is one token, and the vocabulary holds the symbols that the texts
of the environment need and no others, so that no output row is left over.
"""

import json
import pathlib

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

PAD = '<pad>'
STOP = '\n'
SYMBOLS = '\n 0123456789+-*=(),:>abcdefghijklmnopqrstuvwxyz'

CHAT_TEMPLATE = (
    '{%- for message in messages -%}'
    "{%- if message['role'] == 'assistant' -%}{{- '>' + message['content'] -}}"
    "{%- else -%}{{- message['content'] + '\\n' -}}{%- endif -%}"
    '{%- endfor -%}'
    "{%- if add_generation_prompt -%}{{- '>' -}}{%- endif -%}"
)


def build(folder: str | pathlib.Path | None = None) -> tokenizers.Tokenizer:
  """Makes the tokenizer and writes its files.

  Args:
    folder: receives tokenizer.json, tokenizer_config.json and
      chat_template.jinja; None writes nothing.

  Returns:
    The tokenizer: 47 symbols and the pad token, which has id 0. A symbol
    outside the vocabulary is an error, never dropped.
  """
  vocabulary = {PAD: 0} | {s: i for i, s in enumerate(SYMBOLS, start=1)}
  # The unknown token is named but not in the vocabulary: unknown symbols
  # raise instead of vanishing.
  made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token='<unk>'))
  made.pre_tokenizer = pre_tokenizers.Split(
      tokenizers.Regex('.|\\n'), behavior='isolated'
  )
  made.decoder = decoders.Fuse()
  made.add_special_tokens([PAD])
  if folder is not None:
    _write(made, pathlib.Path(folder))
  return made


def _write(made: tokenizers.Tokenizer, folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  made.save(str(folder / 'tokenizer.json'))
  config = {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'pad_token': PAD,
      'eos_token': STOP,
      'clean_up_tokenization_spaces': False,
  }
  (folder / 'tokenizer_config.json').write_text(
      json.dumps(config, indent=2) + '\n', encoding='utf-8'
  )
  (folder / 'chat_template.jinja').write_text(
      CHAT_TEMPLATE + '\n', encoding='utf-8'
  )
