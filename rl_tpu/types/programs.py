"""A jitted function with the arguments that a run calls it with."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Program:
  """What a run compiles, described so that it can be compiled ahead of it.

  Attributes:
    name: for tables.
    function: the jitted function itself.
    arguments: abstract arguments with their shardings.
    holds: part of the memory of a run (`actor`, `actor_optimizer`, `cache`,
      `batch` and so on) -> the argument or the piece of one that it is.
    calls: how often a training step calls it.
    tokens: tokens that one call reads or makes; 0 where none are.
    rows: their length as attention sees it.
    backward: it computes gradients, too.
    reads: how often a call reads its arguments from memory, at least.
  """

  name: str
  function: Any
  arguments: tuple[Any, ...]
  holds: Mapping[str, Any]
  calls: int = 1
  tokens: int = 0
  rows: int = 0
  backward: bool = False
  reads: int = 1
