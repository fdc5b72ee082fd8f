"""Which memory idle arrays lie in: the devices' or the host's.

Actor and critic take turns, and their optimizers work for a moment of each
update: what is not at work may wait in the host's memory (the arrangement of
slime). On its way back an array takes the same shards.
"""

from typing import Any

import jax

from rl_tpu.config import schema

_HOST = 'pinned_host'
_DEVICE = 'device'


class Residence:
  """Moves the parts of a train state, and counts what it moves.

  Attributes:
    moved_bytes: to and from the host since `take_moved`, all devices.
  """

  def __init__(self, config: schema.MemoryConfig):
    """Takes the settings: where each part waits."""
    self._config = config
    self.moved_bytes = 0

  def at_host(self, part: str) -> bool:
    """Whether a part, named as in the settings, waits at the host."""
    return getattr(self._config, part) == 'host'

  def fetch(self, part: str, tree: Any) -> Any:
    """The part on the devices; the very arrays where it is there anyway."""
    return self._move(tree, _DEVICE) if self.at_host(part) else tree

  def store(self, part: str, tree: Any) -> Any:
    """The part where it waits."""
    return self._move(tree, _HOST) if self.at_host(part) else tree

  def take_moved(self) -> int:
    """Bytes moved since the last call."""
    moved, self.moved_bytes = self.moved_bytes, 0
    return moved

  def _move(self, tree: Any, kind: str) -> Any:
    leaves = [
        x for x in jax.tree.leaves(tree) if x.sharding.memory_kind != kind
    ]
    self.moved_bytes += sum(leaf.nbytes for leaf in leaves)
    places = jax.tree.map(lambda x: x.sharding.with_memory_kind(kind), tree)
    return jax.device_put(tree, places)
