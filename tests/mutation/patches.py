"""A fault by hand: a patch, the rules that it breaks, and the tests to run.

A patch names text that stands in its module exactly once. One that does not
apply any more fails the check: whoever rewrites the code moves the fault with
it.
"""

import dataclasses
import pathlib
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Fault:
  """A patch and the tests that have to fail under it.

  Attributes:
    name: what is wrong, in a few words.
    ids: the rules that it breaks.
    edits: (module, old text, new text).
    tests: test modules, the nearest first.
  """

  name: str
  ids: str
  edits: tuple[tuple[str, str, str], ...]
  tests: tuple[str, ...]

  def sources(self, root: pathlib.Path) -> dict[str, str]:
    """The patched modules.

    Raises:
      ValueError: a text that is not there, or more than once.
    """
    sources: dict[str, str] = {}
    for module, old, new in self.edits:
      source = sources.get(module)
      if source is None:
        source = (root / module).read_text('utf-8')
      if source.count(old) != 1:
        raise ValueError(
            f'{self.name!r} does not apply: {module} has'
            f' {source.count(old)} times {old!r}.'
        )
      sources[module] = source.replace(old, new)
    return sources


def fault(
    name: str,
    ids: str,
    tests: tuple[str, ...],
    module: str,
    edits: Mapping[str, str],
) -> Fault:
  """A fault in one module, as old text -> new text."""
  return Fault(
      name, ids, tuple((module, *edit) for edit in edits.items()), tests
  )
