"""Everything that training changes on the device."""

from typing import Any, NamedTuple


class Trainable(NamedTuple):
  """One network and its optimizer: float32 master parameters (L21)."""

  params: Any
  optimizer: Any


class TrainState(NamedTuple):
  """Actor and critic; the reference is separate, since nothing changes it.

  Attributes:
    actor: the policy.
    critic: backbone and value head; None where no critic is trained.
  """

  actor: Trainable
  critic: Trainable | None
