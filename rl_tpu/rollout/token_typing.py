"""The types of a reply's tokens and its tool calls (L19)."""

from collections.abc import Callable, Sequence

import numpy as np

from rl_tpu.environments import protocol
from rl_tpu.text import offsets
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.text import tool_calls
from rl_tpu.types import token_types

# (start, stop, type) of characters; of two that overlap the later one holds.
Parts = Sequence[tuple[int, int, str]]
Parse = Callable[[str], Parts]


def read(
    ids: np.ndarray,
    tokenizer: tokenizer_lib.Tokenizer,
    spec: protocol.EnvironmentSpec,
    stop_ids: Sequence[int],
) -> tuple[np.ndarray, tuple[tool_calls.ToolCall, ...]]:
  """Types int32 [len(ids)] and calls, as the environment reads replies."""
  if spec.tool_format:
    reply = tool_calls.parse(ids, tokenizer, spec.tool_format, stop_ids)
    return reply.token_type, reply.calls
  return types(ids, tokenizer.decode(ids), tokenizer, spec.parse_reply), ()


def types(
    ids: np.ndarray,
    text: str,
    tokenizer: tokenizer_lib.Tokenizer,
    parse: Parse | None,
) -> np.ndarray:
  """The type of every token of a reply, int32 [len(ids)].

  A token has the type of its first character; one without a part is text.

  Args:
    ids: the reply as sampled.
    text: the same, decoded.
    tokenizer: that decoded it.
    parse: the environment's parser; None says nothing.

  Raises:
    ValueError: a part with a type that does not exist.
  """
  parts = parse(text) if parse is not None else ()
  if not parts:
    return np.full(len(ids), token_types.TEXT, np.int32)
  starts = offsets.starts(ids, text, tokenizer.decode)
  return token_types.of_parts(parts, len(text))[starts]
