"""Short content hashes of texts, files and JSON values."""

import hashlib
import json
from typing import Any


def of_bytes(data: bytes) -> str:
  """Sixteen hex digits that stand for the bytes."""
  return hashlib.blake2b(data, digest_size=8).hexdigest()


def of_text(text: str) -> str:
  """Sixteen hex digits that stand for the text."""
  return of_bytes(text.encode('utf-8'))


def of_json(value: Any) -> str:
  """Sixteen hex digits that stand for a JSON value, whatever its key order.

  Raises:
    ValueError: NaN or an infinity, which JSON does not have.
    TypeError: something that is no JSON value.
  """
  text = json.dumps(
      value, sort_keys=True, separators=(',', ':'), allow_nan=False
  )
  return of_text(text)
