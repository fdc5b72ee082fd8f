"""tokenizer.json and its neighbours, as strangers write them.

The `tokenizers` library panics where such a file contradicts itself: what it
raises then is no Exception, and it prints a text of its own beside it. Both
become one line here.
"""

from collections.abc import Iterator, Mapping
import contextlib
import os
import pathlib
import sys
from typing import Any

import tokenizers

from rl_tpu.text import json_files

# The largest public tokenizer.json is a tenth of it.
_MAX_BYTES = 256 * 2**20
# Ids of a vocabulary; the largest public one is a fiftieth of it.
_MAX_ID = 2**24
# Letters, digits, signs, spaces, and characters of several bytes.
_PROBE = 'ab C1 23,\n\u00e9 \u65e5\u672c \U0001f600 ' + 'a' * 31 + 'b'
_TEXTS = ('bos_token', 'eos_token', 'pad_token', 'unk_token')


def read(path: pathlib.Path) -> tuple[tokenizers.Tokenizer, bytes]:
  """The tokenizer of a file that works, and the file's bytes.

  Raises:
    ValueError: the file is missing, too large, no JSON, or describes no
      tokenizer.
  """
  if not json_files.is_there(path):
    raise ValueError(
        f'{path.parent}: there is no tokenizer.json; a model folder holds its'
        ' tokenizer.'
    )
  data = json_files.read_bytes(path, limit=_MAX_BYTES)
  content = json_files.loads_object(data, path)
  _check_ids(path, content)
  with guarded(path):
    backend = tokenizers.Tokenizer.from_str(data.decode('utf-8'))
    _try(backend)
  return backend, data


@contextlib.contextmanager
def guarded(path: pathlib.Path) -> Iterator[None]:
  """Work of the library on a file; what it raises names the file.

  Raises:
    ValueError: the library fails.
  """
  with failing_as(f'{path}: it does not parse'), _without_panic_text():
    yield


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
  """Turns what the library raises, a panic included, into a ValueError.

  Args:
    what: beginning of the line.

  Raises:
    ValueError: the library fails.
  """
  try:
    yield
  except BaseException as error:
    # The library raises the bare class, or a panic that derives from no
    # Exception and cannot be imported. Nothing else is ours.
    if type(error) is not Exception and not is_panic(error):
      raise
    raise ValueError(f'{what}: {str(error)[:200]}') from error


def is_panic(error: BaseException) -> bool:
  """True for what a panic of a library in Rust raises."""
  return type(error).__name__ == 'PanicException'


def check_config(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Refuses members of another kind than they have in the library's files.

  Args:
    path: of tokenizer_config.json or special_tokens_map.json.
    content: its JSON object.

  Raises:
    ValueError: it names the file and the member.
  """
  for name in _TEXTS:
    entry = content.get(name)
    if isinstance(entry, dict):
      entry = entry.get('content', 0)
    _check(path, name, entry, entry is None or isinstance(entry, str))
  added = content.get('added_tokens_decoder')
  _check(path, 'added_tokens_decoder', added, isinstance(added or {}, dict))
  pad = content.get('pad_token_id')
  _check(path, 'pad_token_id', pad, pad is None or type(pad) is int)
  template = content.get('chat_template')
  is_named = isinstance(template, list) and all(
      isinstance(entry, dict) and isinstance(entry.get('template'), str)
      for entry in template
  )
  is_known = template is None or isinstance(template, str) or is_named
  _check(path, 'chat_template', template, is_known)


def _check(path: pathlib.Path, name: str, value: Any, is_it: bool) -> None:
  if not is_it:
    raise ValueError(
        f'{path}: {name} = {json_files.shown(value)} is of another kind than'
        ' such a file has; save the tokenizer anew.'
    )


def _check_ids(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Every id of the vocabulary has one token, and is no larger than a table."""
  model = content.get('model')
  vocabulary = model.get('vocab') if isinstance(model, dict) else None
  if not isinstance(vocabulary, dict):
    return  # A list numbers itself; anything else the library refuses.
  seen: set[Any] = set()
  for token, index in vocabulary.items():
    if type(index) is not int or not 0 <= index < _MAX_ID:
      raise ValueError(
          f'{path}: model.vocab gives {json_files.shown(token)} the id'
          f' {json_files.shown(index)}; ids are whole numbers from 0 to'
          f' {_MAX_ID - 1}.'
      )
    if index in seen:
      raise ValueError(
          f'{path}: model.vocab gives the id {index} to several tokens.'
      )
    seen.add(index)


def _try(backend: tokenizers.Tokenizer) -> None:
  """Finds the files on which the library panics when they are used."""
  try:
    ids = backend.encode(_PROBE, add_special_tokens=False).ids
  except BaseException as error:
    if is_panic(error) or type(error) is not Exception:
      raise
    ids = []  # A vocabulary without these letters; it may be a small one.
  backend.decode(ids, skip_special_tokens=False)
  for index in sorted(backend.get_vocab(with_added_tokens=True).values())[:1]:
    backend.decode([index], skip_special_tokens=False)


@contextlib.contextmanager
def _without_panic_text() -> Iterator[None]:
  """Keeps what the library itself writes of a panic from the terminal."""
  try:
    kept = os.dup(2)
  except OSError:  # There is no such output.
    yield
    return
  try:
    sys.stderr.flush()
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    os.close(sink)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
