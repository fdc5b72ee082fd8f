"""Tokenizers that put a space before a text, and text that is in the middle.

SentencePiece tokenizers write a space in front of what they encode and take
the first one away from what they decode. That is right for the beginning of a
sequence only: in a stream that grows (R4) the later pieces would gain and lose
spaces that nobody wrote.
"""

import json
from typing import Any

import tokenizers


def without(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """The same tokenizer for text that follows other text.

  Returns:
    The tokenizer itself where it adds and takes away nothing.
  """
  data = json.loads(backend.to_str())
  changed = [
      _edit(data, 'normalizer', 'normalizers', _normalizer),
      _edit(data, 'pre_tokenizer', 'pretokenizers', _pre_tokenizer),
      _edit(data, 'decoder', 'decoders', _decoder),
  ]
  if not any(changed):
    return backend
  return tokenizers.Tokenizer.from_str(json.dumps(data))


def _edit(data: dict[str, Any], name: str, parts: str, edit: Any) -> bool:
  """Edits one step or the parts of a sequence of steps; True if it changed."""
  step = data.get(name)
  if step is None:
    return False
  before = json.dumps(step)
  if step['type'] == 'Sequence':
    step[parts] = [p for p in map(edit, step[parts]) if p is not None]
  else:
    data[name] = step = edit(step)
  return json.dumps(step) != before


def _normalizer(step: dict[str, Any]) -> dict[str, Any] | None:
  return None if step['type'] == 'Prepend' else step


def _pre_tokenizer(step: dict[str, Any]) -> dict[str, Any]:
  if step['type'] == 'Metaspace':
    return step | {'prepend_scheme': 'never'}
  if step['type'] == 'ByteLevel':
    return step | {'add_prefix_space': False}
  return step


def _decoder(step: dict[str, Any]) -> dict[str, Any] | None:
  if step['type'] == 'Strip':
    return None
  if step['type'] == 'Metaspace':
    return step | {'prepend_scheme': 'never'}
  return step
