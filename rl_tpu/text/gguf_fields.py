"""The tokenizer among the fields of a GGUF file."""

from collections.abc import Mapping
from typing import Any

import tokenizers

from rl_tpu.text import byte_level
from rl_tpu.text import piece_tokenizer

CHAT_TEMPLATE = 'tokenizer.chat_template'
_GGML = 'tokenizer.ggml.'
# Special tokens by the fields with their ids.
_SPECIAL = {
    'bos_token_id': 'bos_token',
    'eos_token_id': 'eos_token',
    'unknown_token_id': 'unk_token',
    'padding_token_id': 'pad_token',
}
_TURN_END = 'eot_token_id'
_PIECES, _BYTES = 'llama', 'gpt2'


def read(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
  """Builds the tokenizer.

  A file has a token for every row of the embedding; the last ones that stand
  for nothing are left out, so that they are never sampled (K22).

  Raises:
    ValueError: a field that is missing, or a kind that is not supported.
  """
  get = lambda name, default: fields.get(_GGML + name, default)
  kind = get('model', None)
  kinds = _of_tokens(fields, 'token_type')
  unused = piece_tokenizer.Kind.UNUSED
  count = max((n for n, k in enumerate(kinds, 1) if k != unused), default=0)
  tokens, kinds = _list(fields, 'tokens')[:count], kinds[:count]
  bos = special_tokens(fields).get('bos_token')
  if kind == _BYTES:
    merges = [tuple(pair.split(' ')) for pair in _list(fields, 'merges')]
    return byte_level.build(
        tokens,
        kinds,
        merges,
        cuts=get('pre', None),
        bos=bos if get('add_bos_token', False) else None,
    )
  if kind == _PIECES:
    return piece_tokenizer.build(
        tokens,
        _of_tokens(fields, 'scores')[:count],
        kinds,
        bos=bos if get('add_bos_token', True) else None,
        add_prefix=get('add_space_prefix', True),
    )
  raise ValueError(
      f'{_GGML}model = {kind!r} is not supported; use {_BYTES} or {_PIECES}.'
  )


def special_tokens(fields: Mapping[str, Any]) -> dict[str, str]:
  """Special tokens by their names in tokenizer_config.json.

  Raises:
    ValueError: an id that is not below the number of tokens.
  """
  tokens, found = _list(fields, 'tokens'), {}
  for field, name in _SPECIAL.items():
    token_id = fields.get(_GGML + field)
    if token_id is None:
      continue
    if not 0 <= token_id < len(tokens):
      raise ValueError(
          f'{_GGML}{field} = {token_id} is no id of {len(tokens)} tokens.'
      )
    found[name] = tokens[token_id]
  return found


def end_ids(fields: Mapping[str, Any]) -> list[int]:
  """The ids that end a text or a turn."""
  names = ('eos_token_id', _TURN_END)
  found = [fields[_GGML + n] for n in names if _GGML + n in fields]
  return list(dict.fromkeys(found))


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
  if not isinstance(fields.get(_GGML + name), list):
    raise ValueError(f'{_GGML}{name} is missing.')
  return fields[_GGML + name]


def _of_tokens(fields: Mapping[str, Any], name: str) -> list[Any]:
  """A list with one entry per token."""
  found, count = _list(fields, name), len(_list(fields, 'tokens'))
  if len(found) != count:
    raise ValueError(
        f'{_GGML}{name} has {len(found)} entries for {count} tokens.'
    )
  return found
