"""Parameters that keep their start, chosen by name patterns (C10)."""

import fnmatch
from collections.abc import Sequence
from typing import Any

import jax


def names(params: Any) -> list[str]:
  """Names of all parameters: keys joined by `/`, in tree order."""
  return [
      _name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)
  ]


def _name(path: Sequence[Any]) -> str:
  return '/'.join(str(key.key) for key in path)


def mask(params: Any, patterns: Sequence[str]) -> Any:
  """A tree of bools: True where a pattern matches the parameter's name."""
  return jax.tree_util.tree_map_with_path(
      lambda path, _: any(
          fnmatch.fnmatchcase(_name(path), pattern) for pattern in patterns
      ),
      params,
  )


def stopped(params: Any, patterns: Sequence[str]) -> Any:
  """The parameters, without a gradient into the frozen ones."""
  if not patterns:
    return params
  return jax.tree.map(
      lambda leaf, frozen: jax.lax.stop_gradient(leaf) if frozen else leaf,
      params,
      mask(params, patterns),
  )


def check(params: Any, patterns: Sequence[str], *, setting: str) -> None:
  """Refuses patterns that freeze nothing, or everything.

  Raises:
    ValueError: the first such pattern, with the names there are.
  """
  known = names(params)
  for pattern in patterns:
    if not fnmatch.filter(known, pattern):
      raise ValueError(
          f'{setting}={pattern!r}: no parameter has such a name; there are'
          f' {", ".join(known)}.'
      )
  if patterns and all(jax.tree.leaves(mask(params, patterns))):
    raise ValueError(
        f'{setting}={tuple(patterns)!r}: every parameter would be frozen;'
        ' leave some out.'
    )
