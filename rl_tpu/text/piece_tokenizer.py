"""A tokenizer.json from pieces with scores, as SentencePiece's BPE has them.

Text is characters with a space written as U+2581 and put before the first; of
all neighbours that join to a piece the best scored join first. What no piece
covers is spelled in bytes.
"""

from collections.abc import Sequence
import enum

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import processors

SPACE = '\u2581'


class Kind(enum.IntEnum):
  """What a piece is, numbered as in SentencePiece's and GGUF's files."""

  NORMAL = 1
  UNKNOWN = 2
  CONTROL = 3
  USER = 4
  UNUSED = 5
  BYTE = 6


def build(
    pieces: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    *,
    bos: str | None,
    add_prefix: bool = True,
) -> tokenizers.Tokenizer:
  """Makes the tokenizer.

  Args:
    pieces: by id; a space is U+2581, a byte `<0x00>`.
    scores: of the pieces; the higher joins first, of equals the lower id.
    kinds: of the pieces, see `Kind`.
    bos: goes before a text where special tokens are asked for; None is none.
    add_prefix: a space goes before a text.

  Raises:
    ValueError: two pieces are the same, or there is no unknown piece.
  """
  vocabulary = {piece: index for index, piece in enumerate(pieces)}
  if len(vocabulary) != len(pieces):
    twice = next(p for i, p in enumerate(pieces) if vocabulary[p] != i)
    raise ValueError(f'the tokenizer has the piece {twice!r} twice.')
  unknown = [p for p, kind in zip(pieces, kinds) if kind == Kind.UNKNOWN]
  if not unknown:
    raise ValueError('the tokenizer has no piece for what is unknown.')
  model = models.BPE(
      vocab=vocabulary,
      merges=_merges(pieces, scores, kinds),
      unk_token=unknown[0],
      fuse_unk=True,
      byte_fallback=True,
  )
  made = tokenizers.Tokenizer(model)
  replaced = normalizers.Replace(' ', SPACE)
  prepended = [normalizers.Prepend(SPACE)] if add_prefix else []
  made.normalizer = normalizers.Sequence([*prepended, replaced])
  if bos is not None:
    made.post_processor = processors.TemplateProcessing(
        single=f'{bos} $A',
        pair=f'{bos} $A {bos}:1 $B:1',
        special_tokens=[(bos, vocabulary[bos])],
    )
  stripped = [decoders.Strip(' ', 1, 0)] if add_prefix else []
  made.decoder = decoders.Sequence([
      decoders.Replace(SPACE, ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      *stripped,
  ])
  add_whole_tokens(made, pieces, kinds)
  return made


def add_whole_tokens(
    made: tokenizers.Tokenizer, tokens: Sequence[str], kinds: Sequence[int]
) -> None:
  """Marks the tokens that are found in a text before anything else."""
  special = (Kind.UNKNOWN, Kind.CONTROL)
  made.add_special_tokens([t for t, k in zip(tokens, kinds) if k in special])
  made.add_tokens([t for t, k in zip(tokens, kinds) if k == Kind.USER])


def _merges(pieces, scores, kinds) -> list[tuple[str, str]]:
  """Every way to join two pieces to a third, best first."""
  normal = {p for p, kind in zip(pieces, kinds) if kind == Kind.NORMAL}
  order = sorted(range(len(pieces)), key=lambda index: (-scores[index], index))
  return [
      (pieces[index][:cut], pieces[index][cut:])
      for index in order
      if kinds[index] == Kind.NORMAL
      for cut in range(1, len(pieces[index]))
      if pieces[index][:cut] in normal and pieces[index][cut:] in normal
  ]
