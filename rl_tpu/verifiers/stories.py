"""Whether a story comes back to what its first line names."""

import re
from collections.abc import Mapping
from typing import Any

from rl_tpu.verifiers import protocol


class NounVerifier:
  """1 where the noun stands in the ending as a whole word, else 0."""

  verifier_id = 'stories/noun'
  version = '1'
  deterministic = True

  def score(self, evidence: Mapping[str, Any]) -> protocol.Score:
    """Looks for `noun` in `ending`, whatever the case of its letters.

    Something has to follow the word: at the very end it may be the beginning
    of another one that the limit of tokens cut off.

    Raises:
      ValueError: evidence without a noun.
    """
    noun, ending = evidence['noun'], evidence['ending']
    if not noun:
      raise ValueError('the evidence names no noun.')
    word = rf'\b{re.escape(noun)}\b.'
    is_there = bool(re.search(word, ending, re.IGNORECASE | re.DOTALL))
    return protocol.Score(value=float(is_there), solved=is_there)
