"""Text to token ids and back, from a Hugging Face folder."""

import functools
import json
import pathlib
from typing import Any

import numpy as np
import tokenizers

from rl_tpu.text import end_tokens
from rl_tpu.text import hashing
from rl_tpu.text import prefix_space
from rl_tpu.text import tokenizer_files

_CACHED_TEXTS = 4096


class Tokenizer:
  """The tokenizer of a model folder; adds no special tokens by itself."""

  def __init__(
      self,
      backend: tokenizers.Tokenizer,
      *,
      pad_id: int | None = None,
      stop_ids: tuple[int, ...] = (),
      files_hash: str = '',
  ):
    """Wraps a tokenizer.

    Args:
      backend: of the `tokenizers` library.
      pad_id: what the folder names as padding; None or -1 is none, and then
        id 0 fills the gaps. Masks go by length, never by this id (K21).
      stop_ids: what the folder names as ends of a turn (K19).
      files_hash: stands for the files (R5); by default the backend's own
        serialised form.

    Raises:
      ValueError: a pad id that is no token.
    """
    # A limit or a padding of the file is of batches, never of a text.
    backend.no_truncation()
    backend.no_padding()
    self._backend = backend
    self._following = prefix_space.without(backend)
    self._size = _size(backend)
    self._pad_id = check_pad_id(pad_id, self._size)
    self._stop_ids = tuple(stop_ids)
    self._special = tuple(
        token.content
        for token in backend.get_added_tokens_decoder().values()
        if token.special
    )
    self._hash = files_hash or hashing.of_text(backend.to_str())
    self._encode = functools.lru_cache(_CACHED_TEXTS)(self._encode_text)
    self._decode = functools.lru_cache(_CACHED_TEXTS)(self._decode_bytes)

  @classmethod
  def from_folder(cls, folder: str | pathlib.Path) -> 'Tokenizer':
    """Reads tokenizer.json and what its neighbours say of special tokens.

    Raises:
      ValueError: no tokenizer.json, a file that does not parse, or a special,
        pad or end token that the vocabulary does not hold.
    """
    path = pathlib.Path(folder) / 'tokenizer.json'
    backend, data = tokenizer_files.read(path)
    config = read_config(folder)
    _check_special(backend, config, folder)
    extra = json.dumps(config, sort_keys=True).encode()
    eos = token_text(config.get('eos_token'))
    with tokenizer_files.guarded(path):
      return cls(
          backend,
          pad_id=_pad_id_of(backend, config, folder),
          stop_ids=end_tokens.read(
              folder,
              _size(backend),
              None if eos is None else backend.token_to_id(eos),
          ),
          files_hash=hashing.of_bytes(data + extra),
      )

  @property
  def size(self) -> int:
    """Ids are below it."""
    return self._size

  @property
  def pad_id(self) -> int:
    """A valid id for padded places."""
    return self._pad_id

  @property
  def stop_ids(self) -> tuple[int, ...]:
    """Ids that the folder names as ends of a turn; empty where it has none."""
    return self._stop_ids

  @property
  def special_tokens(self) -> tuple[str, ...]:
    """Texts of the tokens that stand for no text of their own."""
    return self._special

  @property
  def hash(self) -> str:
    """Stands for the tokenizer's files (R5)."""
    return self._hash

  def encode(self, text: str, *, follows: bool = False) -> np.ndarray:
    """[L] int32 ids of the text alone.

    Args:
      text: special tokens in it are read as such.
      follows: it comes after other text, so no space is put before it by a
        tokenizer that puts one before the first word of a sequence.

    Raises:
      ValueError: the vocabulary has no token for some of it.
    """
    return np.array(self._encode(text, follows), np.int32)

  def _encode_text(self, text: str, follows: bool) -> tuple[int, ...]:
    backend = self._following if follows else self._backend
    what = f'the vocabulary has no token for part of {text!r}'
    with tokenizer_files.failing_as(what):
      return tuple(backend.encode(text, add_special_tokens=False).ids)

  def decode(self, ids: Any) -> str:
    """The text of ids wherever they stand, special tokens written out.

    Raises:
      ValueError: an id outside the vocabulary.
    """
    return self._decode(np.asarray(ids, np.int64).tobytes())

  def _decode_bytes(self, data: bytes) -> str:
    ids = np.frombuffer(data, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= self._size):
      raise ValueError(
          f'ids from {ids.min()} to {ids.max()}: the vocabulary has'
          f' {self._size} tokens.'
      )
    return self._following.decode(ids.tolist(), skip_special_tokens=False)

  def token_id(self, text: str) -> int:
    """The id of a text that is one token, for stop tokens.

    Raises:
      ValueError: no token or several.
    """
    found = self._backend.token_to_id(text)
    if found is not None:
      return found
    try:
      ids = self._encode(text, True)
    except ValueError:
      ids = ()
    if len(ids) != 1 or self.decode(ids) != text:
      raise ValueError(
          f'{text!r} is no single token of the tokenizer (it is {len(ids)}'
          ' tokens); name another stop text (sampling.stop).'
      )
    return ids[0]


def _size(backend: tokenizers.Tokenizer) -> int:
  ids = backend.get_vocab(with_added_tokens=True).values()
  return max(ids, default=-1) + 1


def read_config(folder: str | pathlib.Path) -> dict[str, Any]:
  """What the folder says of its tokenizer; empty where it says nothing.

  Older folders name special tokens in special_tokens_map.json;
  tokenizer_config.json goes before it.

  Raises:
    ValueError: a file that is not a JSON object.
  """
  files = ('special_tokens_map.json', 'tokenizer_config.json')
  paths = [pathlib.Path(folder) / name for name in files]
  older, newer = (end_tokens.read_object(path) for path in paths)
  for path, content in zip(paths, (older, newer)):
    tokenizer_files.check_config(path, content)
  return older | newer


def token_text(entry: Any) -> str | None:
  """The text of a special token, which is written as a string or an object."""
  if isinstance(entry, dict):
    entry = entry.get('content')
  return entry if isinstance(entry, str) else None


def check_pad_id(pad_id: int | None, size: int) -> int:
  """A valid id for padding: the given one, or 0 where there is none (K21).

  Raises:
    ValueError: an id that is not below the vocabulary's size.
  """
  if pad_id is None or pad_id < 0:
    return 0
  if pad_id >= size:
    raise ValueError(
        f'pad id {pad_id}: the tokenizer has {size} tokens; name a pad token'
        ' of its vocabulary, or none.'
    )
  return pad_id


def _check_special(
    backend: tokenizers.Tokenizer,
    config: dict[str, Any],
    folder: str | pathlib.Path,
) -> None:
  """A special token that tokenizer.json lacks would be read as its letters."""
  for text_id, entry in (config.get('added_tokens_decoder') or {}).items():
    text = token_text(entry)
    if not isinstance(entry, dict):
      raise ValueError(
          f'{folder}: tokenizer_config.json: added_tokens_decoder.{text_id} ='
          f' {entry!r} is no object; save the tokenizer anew.'
      )
    if entry.get('special') and str(backend.token_to_id(text)) != text_id:
      raise ValueError(
          f'{folder}: tokenizer_config.json gives the special token {text!r}'
          f' the id {text_id}, tokenizer.json does not; save the tokenizer'
          ' anew, so that tokenizer.json holds all of its tokens.'
      )


def _pad_id_of(
    backend: tokenizers.Tokenizer,
    config: dict[str, Any],
    folder: str | pathlib.Path,
) -> int | None:
  text = token_text(config.get('pad_token'))
  if text is None:
    pad_id = config.get('pad_token_id')
    return pad_id if isinstance(pad_id, int) else None
  found = backend.token_to_id(text)
  if found is None:
    raise ValueError(
        f'{folder}: pad_token {text!r} of tokenizer_config.json is not in the'
        ' vocabulary.'
    )
  return found
