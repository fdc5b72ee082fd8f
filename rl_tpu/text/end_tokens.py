"""The tokens that a model folder names as ends of a turn (K19)."""

import pathlib
from typing import Any

from rl_tpu.text import json_files

# The first of them that names any is believed, as transformers does.
FILES = ('generation_config.json', 'config.json')


def read(
    folder: str | pathlib.Path, size: int, eos_id: int | None
) -> tuple[int, ...]:
  """The ids that end a turn, in the order of the file.

  A chat model often has several: Llama 3 ends a message with one token and a
  tool call with another.

  Args:
    folder: of the model.
    size: of the vocabulary.
    eos_id: of the tokenizer's eos token; used where no file names ids.

  Raises:
    ValueError: an entry that is no id of the vocabulary, or a file that is
      not a JSON object.
  """
  for found in told(folder, size).values():
    return found
  return () if eos_id is None else (eos_id,)


def told(folder: str | pathlib.Path, size: int) -> dict[str, tuple[int, ...]]:
  """The ids that each file names, by its name; the first one is believed.

  Args:
    folder: of the model.
    size: of the vocabulary.

  Raises:
    ValueError: as `read`.
  """
  out = {}
  for name in FILES:
    path = pathlib.Path(folder) / name
    found = read_object(path).get('eos_token_id')
    if found is not None:
      out[name] = _checked(path, found, size)
  return out


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """A file's JSON object; empty where there is no file.

  Raises:
    ValueError: the file is not a JSON object.
  """
  return json_files.read_object(path) if json_files.is_there(path) else {}


def _checked(path: pathlib.Path, found: Any, size: int) -> tuple[int, ...]:
  ids = found if isinstance(found, list) else [found]
  for entry in ids:
    if type(entry) is not int or not 0 <= entry < size:
      raise ValueError(
          f'{path}: eos_token_id {json_files.shown(entry)} is no id of the tokenizer, which has'
          f' {size} tokens.'
      )
  return tuple(dict.fromkeys(ids))
