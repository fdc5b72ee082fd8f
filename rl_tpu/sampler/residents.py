"""What the caches of free slots still hold."""

import numpy as np


class Residents:
  """Token sequences left in free slots, to be continued by later prompts.

  Only whole sequences are continued: the next prompt of a conversation is the
  last one, what was sampled for it, and something new.
  """

  def __init__(self, slots: int):
    """All slots are empty."""
    self._content: list[bytes | None] = [None] * slots
    self._slot_of: dict[bytes, int] = {}
    self._uses = 0
    self.last_use = [0] * slots  # 0 where nothing is held.

  def put(self, slot: int, token: np.ndarray) -> None:
    """A slot became free and holds these ids."""
    self.forget(slot)
    content = token.astype(np.int32).tobytes()
    if content and content not in self._slot_of:
      self._uses += 1
      self._content[slot] = content
      self._slot_of[content] = slot
      self.last_use[slot] = self._uses

  def take(self, prompt: np.ndarray) -> tuple[int, int]:
    """Finds the longest sequence that a prompt continues, and removes it.

    Returns:
      Its slot and number of tokens; -1 and 0 if there is none.
    """
    content = prompt.tobytes()
    lengths = {len(held) for held in self._slot_of}
    for length in sorted(lengths, reverse=True):
      if length < len(content):
        slot = self._slot_of.get(content[:length])
        if slot is not None:
          self.forget(slot)
          return slot, length // prompt.itemsize
    return -1, 0

  def forget(self, slot: int) -> None:
    """The slot's cache is written to."""
    content = self._content[slot]
    if content is not None:
      del self._slot_of[content]
    self._content[slot] = None
    self.last_use[slot] = 0

  def forget_all(self, from_length: int = 0) -> None:
    """The caches are lost, or only those of at least so many tokens."""
    for slot, content in enumerate(self._content):
      if content is not None and len(content) >= 4 * from_length:
        self.forget(slot)
