"""What a verifier is: a score for what the policy could not write.

A user's verifier is any class with these members, named by import path
(`module:Class`).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Protocol

from rl_tpu.types import termination as term


@dataclasses.dataclass(frozen=True)
class Score:
  """What a verifier says of one rollout.

  Attributes:
    value: the terminal reward before its weight.
    solved: what success means; counted in evaluation.
    components: figures for reports, by name.
  """

  value: float
  solved: bool
  components: Mapping[str, float] = dataclasses.field(default_factory=dict)


class VerifierFault(Exception):
  """The verifier gave no score: never a reward of 0 (K35)."""

  def __init__(
      self,
      detail: str,
      fault_cause: term.FaultCause = term.FaultCause.VERIFIER,
  ):
    """Args: what happened, and the cause that the record gets."""
    super().__init__(detail)
    self.fault_cause = fault_cause


class Verifier(Protocol):
  """Scores the evidence that an environment hands over.

  A verifier may set `deterministic = True`: a second score of the same
  evidence that differs then stops the run (D8). It may have a method
  `check_payload(payload)`, which raises ValueError for a task that it could
  never score: such a task is refused at the start and by `check-data` (K50).
  """

  @property
  def verifier_id(self) -> str:
    """Its name; goes into every rollout."""

  @property
  def version(self) -> str:
    """Of the code that scores; goes into every rollout."""

  def score(self, evidence: Mapping[str, Any]) -> Score:
    """The score; raises where there is none."""
