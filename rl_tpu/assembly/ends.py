"""What ends a turn: one fact, which several files and a setting tell (K53)."""

from collections.abc import Iterator
import json
import pathlib
from typing import Any

from absl import logging

from rl_tpu.config import schema
from rl_tpu.models import value_head
from rl_tpu.text import chat
from rl_tpu.text import end_tokens
from rl_tpu.text import templates
from rl_tpu.text import tokenizer as tokenizer_lib

# Where the tokenizer's end stands, as a text.
_TEXTS = ('tokenizer_config.json', 'special_tokens_map.json')


def ids(
    config: schema.ExperimentConfig, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[int, ...]:
  """The tokens that end a turn of the run.

  Raises:
    ValueError: the vocabulary lacks one of sampling.stop.
  """
  found = []
  for text in config.sampling.stop:
    try:
      found.append(tokenizer.token_id(text))
    except ValueError as error:
      raise ValueError(f'sampling.stop = {text!r}: {error}') from error
  return tuple(dict.fromkeys(found)) or tokenizer.stop_ids


def check(
    config: schema.ExperimentConfig,
    tokenizer: tokenizer_lib.Tokenizer,
    template: chat.ChatTemplate,
) -> None:
  """Warns, in one line, of tokens that are told to end a turn and do not.

  Raises:
    ValueError: the vocabulary lacks one of sampling.stop.
  """
  ends = ids(config, tokenizer)
  lost: dict[int, str] = {}
  for where, index in _told(config, tokenizer, template):
    if index not in ends:
      lost.setdefault(index, where)
  if not lost:
    return
  logging.warning(
      'sampling.stop = %s: a turn ends with %s; no turn ends with %s',
      config.sampling.stop,
      ', '.join(f'{tokenizer.decode([index])!r} ({index})' for index in ends),
      ' or '.join(
          f'{tokenizer.decode([index])!r} ({index}), {where}'
          for index, where in lost.items()
      ),
  )


def _told(config, tokenizer, template) -> Iterator[tuple[str, int]]:
  """Who says so, and the id."""
  closing = _closing(tokenizer, template)
  if closing is not None:
    yield 'the closing token of the chat template', closing
  told = end_tokens.told(config.model.path, tokenizer.size)
  for name, found in told.items():
    for index in found:
      yield f'an eos_token_id of {name}', index
  entry = tokenizer_lib.read_config(config.model.path).get('eos_token')
  text = tokenizer_lib.token_text(entry)
  if text in tokenizer.special_tokens:
    yield 'the eos_token of tokenizer_config.json', tokenizer.token_id(text)


def _closing(tokenizer, template) -> int | None:
  """The control token that the template writes after a reply, if it does."""
  try:
    found = tokenizer.encode(template.closing(), follows=True)
  except ValueError:
    return None
  is_control = (
      len(found) > 0 and tokenizer.decode(found[:1]) in tokenizer.special_tokens
  )
  return int(found[0]) if is_control else None


def write(
    folder: pathlib.Path,
    ends: tuple[int, ...],
    tokenizer: tokenizer_lib.Tokenizer,
    template: chat.ChatTemplate,
) -> None:
  """Tells the ends in every file of an exported folder that tells any.

  Args:
    folder: with the base's files in it.
    ends: of the run.
    tokenizer: of the run.
    template: of the folder; where it writes the eos token itself, that token
      stays what it is, because the prompts would change with it.
  """
  for name in (*end_tokens.FILES, f'{value_head.CRITIC}/config.json'):
    content = end_tokens.read_object(folder / name)
    told = content.get('eos_token_id')
    if told is not None and _listed(told) != list(ends):
      _replace(folder / name, content, 'eos_token_id', _as_told(told, ends))
  _, reads = templates.compiled(template.text)
  text = tokenizer.decode(ends[:1])
  if 'eos_token' in reads or text not in tokenizer.special_tokens:
    return
  for name in _TEXTS:
    content = end_tokens.read_object(folder / name)
    told = tokenizer_lib.token_text(content.get('eos_token'))
    if told is not None and not _is_among(told, ends, tokenizer):
      _replace(folder / name, content, 'eos_token', text)


def _listed(told: Any) -> list[Any]:
  return told if isinstance(told, list) else [told]


def _as_told(told: Any, ends: tuple[int, ...]) -> Any:
  """One id stays a number where it was one."""
  is_one = not isinstance(told, list) and len(ends) == 1
  return ends[0] if is_one else list(ends)


def _is_among(text: str, ends, tokenizer) -> bool:
  try:
    return tokenizer.token_id(text) in ends
  except ValueError:
    return False


def _replace(path: pathlib.Path, content, name: str, value: Any) -> None:
  text = json.dumps({**content, name: value}, indent=2, ensure_ascii=False)
  path.write_text(text + '\n', encoding='utf-8')
