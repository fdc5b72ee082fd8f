"""JSON files of a model folder, which strangers wrote.

A file is looked at before it is opened, its size is known before it is read,
and what it holds is plain: no key twice, no half of a character, no number
that is none, no nesting without end. Everything else is one line that names
the file.
"""

from collections.abc import Iterable
import errno
import json
import math
import os
import pathlib
import stat
from typing import Any

# The largest index.json of a public model is a sixth of it.
MAX_BYTES = 64 * 2**20
# Public files nest less than ten deep.
MAX_DEPTH = 64
# A value is quoted to be found again, not to be read whole.
_SHOWN = 80
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


def is_there(path: pathlib.Path) -> bool:
  """Whether there is a file to be read; a link to nothing is no file.

  Raises:
    ValueError: something is there that is no file: a directory, a pipe, a
      device, links in a circle, or a name that no file can have.
  """
  try:
    mode = path.stat().st_mode
  except ValueError:
    raise ValueError(f'{str(path)!r} is no name of a file.') from None
  except OSError as error:
    if error.errno in _ABSENT and not path.is_symlink():
      return False
    raise ValueError(f'{path} cannot be read: {error.strerror}.') from None
  if not stat.S_ISREG(mode):
    kind = 'a directory' if stat.S_ISDIR(mode) else 'a pipe or a device'
    raise ValueError(f'{path} is {kind}; it must be a file.')
  return True


def read_bytes(path: pathlib.Path, *, limit: int = MAX_BYTES) -> bytes:
  """The content of a file that is no larger than `limit`.

  Raises:
    ValueError: it is larger, or no file.
  """
  if not is_there(path):
    raise ValueError(f'{path} is missing.')
  with path.open('rb') as file:
    size = os.fstat(file.fileno()).st_size
    # A file that grows meanwhile is not read to its end either.
    data = b'' if size > limit else file.read(limit + 1)
  if max(size, len(data)) > limit:
    raise ValueError(
        f'{path} has {size} bytes; a file of that name has {limit} at most.'
    )
  return data


def read_object(
    path: pathlib.Path, *, limit: int = MAX_BYTES
) -> dict[str, Any]:
  """A file's JSON object.

  Raises:
    ValueError: no such file, or another content.
  """
  return loads_object(read_bytes(path, limit=limit), path)


def loads_object(data: bytes, path: pathlib.Path) -> dict[str, Any]:
  """The JSON object that bytes stand for.

  Args:
    data: UTF-8.
    path: where they are from, for messages.

  Raises:
    ValueError: they stand for something else.
  """
  try:
    content = json.loads(
        data.decode('utf-8'),
        object_pairs_hook=_without_duplicates,
        parse_constant=_refuse_constant,
        parse_float=_finite,
    )
    _check_plain(content)
  except RecursionError:
    raise ValueError(_too_deep(path)) from None
  except ValueError as error:
    raise ValueError(f'{path} does not parse as JSON: {error}.') from None
  if not isinstance(content, dict):
    raise ValueError(f'{path} must hold a JSON object.')
  return content


def shown(value: Any) -> str:
  """A value of a file for a message, cut where it is long."""
  text = repr(value)
  return text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'


def _too_deep(path: pathlib.Path) -> str:
  return f'{path} does not parse as JSON: it nests more than {MAX_DEPTH} deep.'


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) != len(pairs):
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise ValueError(f'an object has the key {shown(twice)} twice')
  return found


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is no number')


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise ValueError(f'{text[:_SHOWN]} is too large a number')
  return value


def _check_plain(content: Any) -> None:
  """Refuses depth, and halves of characters (surrogates) in any text."""
  level: list[Any] = [content]
  depth = 0
  while level:
    depth += 1
    if depth > MAX_DEPTH + 1:
      raise ValueError(f'it nests more than {MAX_DEPTH} deep')
    inner: list[Any] = []
    for value in level:
      if isinstance(value, dict):
        _check_texts(value)
        inner += value.values()
      elif isinstance(value, list):
        inner += value
      elif isinstance(value, str):
        _check_texts((value,))
    level = inner


def _check_texts(texts: Iterable[str]) -> None:
  for text in texts:
    if not text.isascii():
      try:
        text.encode('utf-8')
      except UnicodeEncodeError as error:
        raise ValueError(
            f'{shown(text)} holds half of a character at place {error.start}'
        ) from None
