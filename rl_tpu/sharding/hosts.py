"""The processes of a run, one a host, and what they tell each other.

Without Pathways the same program runs on every host, and each process takes
every decision by itself. What only one of them can know (an environment's
answer, a clock, a signal) is exchanged first, at the same points of the
program everywhere. The lead is process 0: it alone writes files.
"""

from collections.abc import Callable
import dataclasses
import hashlib
import pickle
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils
import numpy as np

T = TypeVar('T')
# Bytes that a round carries for each process; what is longer takes another.
_FRAME = 4096
_LENGTH = np.dtype('<u8')


@dataclasses.dataclass(frozen=True)
class Hosts:
  """One process's place among all.

  Attributes:
    index: of this process.
    count: processes.
    gather: bytes of every process, in their order; called by all of them.
  """

  index: int
  count: int
  gather: Callable[[bytes], list[bytes]]

  @property
  def is_lead(self) -> bool:
    """Whether this process writes the run's files."""
    return self.index == 0

  def exchange(self, item: T) -> list[T]:
    """The item of every process, in their order; called by all of them.

    Args:
      item: of a type that pickle takes.
    """
    if self.count == 1:
      return [item]
    return [pickle.loads(data) for data in self.gather(pickle.dumps(item))]

  def of_lead(self, make: Callable[[], T]) -> T:
    """What the lead makes, on every process.

    Raises:
      Exception: what `make` raised at the lead, on every process.
    """
    if self.count == 1:
      return make()
    made, error = None, None
    if self.is_lead:
      try:
        made = make()
      except Exception as caught:  # pylint: disable=broad-except
        # It has to be raised on all of them: the others wait for an answer.
        error = caught
    made, error = self.exchange((made, _portable(error)))[0]
    if error is not None:
      raise error
    return made

  def check_equal(self, what: str, data: bytes) -> None:
    """Compares bytes that every process should have alike.

    Raises:
      RuntimeError: they differ; it names `what` and the processes.
    """
    digests = self.exchange(hashlib.blake2b(data, digest_size=16).digest())
    if others := [i for i, d in enumerate(digests) if d != digests[0]]:
      raise RuntimeError(
          f'{what} differs between the processes of this run: process'
          f' {", ".join(map(str, others))} against process 0. They have to take'
          ' the same decisions; look for what depends on a clock, a set or a'
          ' file that is not the same on every host.'
      )


# A program of one process.
ALONE = Hosts(0, 1, lambda data: [data])


def here() -> Hosts:
  """The place of this process in the program that JAX runs."""
  return Hosts(jax.process_index(), jax.process_count(), _gather)


def _portable(error: Exception | None) -> Exception | None:
  """The error, or where pickle does not take it one of its name and text."""
  try:
    pickle.loads(pickle.dumps(error))
    return error
  except Exception:  # pylint: disable=broad-except
    return RuntimeError(f'{type(error).__name__}: {error}')


def _gather(data: bytes) -> list[bytes]:
  """Gathers bytes over the devices' own network, in frames of few sizes."""
  room = _FRAME - _LENGTH.itemsize
  head = np.asarray(len(data), _LENGTH).tobytes() + data[:room]
  first = _gather_array(head, _FRAME)
  lengths = first[:, : _LENGTH.itemsize].copy().view(_LENGTH)[:, 0]
  found = [row[_LENGTH.itemsize :].tobytes() for row in first]
  longest = int(lengths.max()) - room
  if longest > 0:
    # Powers of two, so that few programs are compiled.
    rest = _gather_array(data[room:], 1 << (longest - 1).bit_length())
    found = [part + row.tobytes() for part, row in zip(found, rest)]
  return [part[:length] for part, length in zip(found, lengths)]


def _gather_array(data: bytes, size: int) -> np.ndarray:
  """[processes, size] uint8 of padded bytes."""
  padded = np.zeros(size, np.uint8)
  padded[: len(data)] = np.frombuffer(data, np.uint8)
  return np.asarray(multihost_utils.process_allgather(padded))
