"""A tokenizer.json from tokens and merges over bytes, as GPT-2's BPE has them.

Text is cut into words first; what a merge joins never crosses a cut. Which
cuts is a part of a tokenizer that its tokens do not tell.
"""

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors

from rl_tpu.text import piece_tokenizer

# Names of the ways to cut, as GGUF files have them.
WORDS, WORDS_AND_DIGITS, QWEN = 'gpt-2', 'smollm', 'qwen2'
CUTS = (WORDS, WORDS_AND_DIGITS, QWEN)
# What is a word for Qwen2, Qwen2.5 and Qwen3; the first that fits is taken.
_QWEN_WORD = '|'.join((
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",  # the end of an English short form
    r'[^\r\n\p{L}\p{N}]?\p{L}+',  # letters, one sign or space before them
    r'\p{N}',  # every digit alone
    r' ?[^\s\p{L}\p{N}]+[\r\n]*',  # signs, to the end of their line
    r'\s*[\r\n]+',  # lines that end or are empty
    r'\s+(?!\S)',  # spaces but the last one, which goes to the next word
    r'\s+',
))


def build(
    tokens: Sequence[str],
    kinds: Sequence[int],
    merges: Sequence[tuple[str, str]],
    *,
    cuts: str,
    bos: str | None,
) -> tokenizers.Tokenizer:
  """Makes the tokenizer.

  Args:
    tokens: by id, bytes written as GPT-2's letters.
    kinds: of the tokens, see `piece_tokenizer.Kind`.
    merges: pairs of tokens, the first joins first.
    cuts: gpt-2 cuts at words, smollm at every digit too; qwen2 at words of
      its own, in text of composed characters (NFC).
    bos: goes before a text where special tokens are asked for; None is none.

  Raises:
    ValueError: cuts that are not known, a token that is there twice or a
      merge of tokens that are not there.
  """
  if cuts not in CUTS:
    raise ValueError(
        f'the tokenizer cuts words as {cuts!r}, which is not supported; use one'
        f' of {", ".join(CUTS)}.'
    )
  vocabulary = {token: index for index, token in enumerate(tokens)}
  if len(vocabulary) != len(tokens):
    twice = next(t for i, t in enumerate(tokens) if vocabulary[t] != i)
    raise ValueError(f'the tokenizer has the token {twice!r} twice.')
  for pair in merges:
    if len(pair) != 2 or ''.join(pair) not in vocabulary:
      raise ValueError(f'the tokenizer has no token for its merge {pair}.')
  made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
  if cuts == QWEN:
    made.normalizer = normalizers.NFC()
  made.pre_tokenizer = _cutter(cuts)
  made.decoder = decoders.ByteLevel()
  if bos is not None:
    made.post_processor = processors.TemplateProcessing(
        single=f'{bos} $A',
        pair=f'{bos} $A {bos}:1 $B:1',
        special_tokens=[(bos, vocabulary[bos])],
    )
  piece_tokenizer.add_whole_tokens(made, tokens, kinds)
  return made


def _cutter(cuts: str) -> pre_tokenizers.PreTokenizer:
  """Cuts a text into words, and writes their bytes as letters."""
  as_bytes = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=cuts != QWEN
  )
  if cuts == WORDS_AND_DIGITS:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, as_bytes])
  if cuts == QWEN:
    pattern = tokenizers.Regex(_QWEN_WORD)
    words = pre_tokenizers.Split(pattern, behavior='isolated')
    return pre_tokenizers.Sequence([words, as_bytes])
  return as_bytes
