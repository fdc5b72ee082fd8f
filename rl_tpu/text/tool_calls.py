"""Tool calls of a reply, read from its token ids (L19)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_tpu.text import offsets
from rl_tpu.text import tokenizer as tokenizer_lib
from rl_tpu.text import tool_formats
from rl_tpu.types import token_types


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """A call that a reply makes, or tries to make.

  Attributes:
    name: of the tool; empty where the call is malformed.
    arguments: by name.
    start: the first token that holds some of it.
    stop: the first token after it.
    error: what is wrong with a malformed call; empty otherwise.
  """

  name: str
  arguments: Mapping[str, Any]
  start: int
  stop: int
  error: str = ''


@dataclasses.dataclass(frozen=True)
class Reply:
  """A reply in its parts.

  Attributes:
    token_type: int32 [L]; a token has the type of its first character (L19).
    calls: in order, malformed ones among them.
    reasoning: token spans of the thinking blocks, their marks included.
    content: the text outside of calls and thinking blocks.
  """

  token_type: np.ndarray
  calls: tuple[ToolCall, ...]
  reasoning: tuple[tuple[int, int], ...]
  content: str


def parse(
    ids: np.ndarray,
    tokenizer: tokenizer_lib.Tokenizer,
    format_name: str,
    stop_ids: Sequence[int] = (),
) -> Reply:
  """Reads a reply as it was sampled; whatever it holds, this does not fail.

  A mark counts wherever its text stands, as one token or as many. Calls that
  are whole at the end of a reply's beginning are calls of the reply.

  Args:
    ids: [L], stop token included.
    tokenizer: of the policy.
    format_name: qwen, llama3 or glm.
    stop_ids: a last token among them is no part of the text.

  Raises:
    ValueError: there is no such format.
  """
  stopped = len(ids) > 0 and int(ids[-1]) in stop_ids
  body = ids[:-1] if stopped else ids
  text = tokenizer.decode(body)
  scan = tool_formats.read(text, format_name)
  starts = offsets.starts(body, text, tokenizer.decode)
  kinds = np.full(len(ids), token_types.TEXT, np.int32)
  kinds[: len(body)] = token_types.of_parts(
      scan.parts, len(text)
  )[starts]
  if stopped:
    kinds[-1] = token_types.STOP
  calls = tuple(
      ToolCall(
          call.name,
          call.arguments,
          *offsets.token_span(starts, call.start, call.stop),
          call.error,
      )
      for call in scan.calls
  )
  return Reply(
      token_type=kinds,
      calls=calls,
      reasoning=tuple(offsets.token_span(starts, *s) for s in scan.reasoning),
      content=''.join(text[start:stop] for start, stop in scan.said),
  )
