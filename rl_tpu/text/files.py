"""The tokenizer's files of a model folder that an importer makes."""

from collections.abc import Mapping
import json
import pathlib

import tokenizers

# A model that knows no roles reads the messages one after another.
PLAIN_TEMPLATE = (
    "{%- for message in messages -%}{{- message['content'] -}}{%- endfor -%}"
)


def write(
    folder: pathlib.Path,
    tokenizer: tokenizers.Tokenizer,
    *,
    special: Mapping[str, str],
    max_length: int,
    chat_template: str = PLAIN_TEMPLATE,
) -> None:
  """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja.

  Args:
    folder: of the model.
    tokenizer: of the `tokenizers` library.
    special: tokens by their names in the config, such as `eos_token`.
    max_length: positions of the model.
    chat_template: in jinja2.
  """
  folder.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(folder / 'tokenizer.json'))
  config = {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      **special,
      'model_max_length': max_length,
      'clean_up_tokenization_spaces': False,
  }
  text = json.dumps(config, indent=2, ensure_ascii=False)
  (folder / 'tokenizer_config.json').write_text(text + '\n', encoding='utf-8')
  (folder / 'chat_template.jinja').write_text(chat_template, encoding='utf-8')
