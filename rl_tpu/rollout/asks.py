"""What a session asks for, what it is given, and who is to run (T14)."""

import dataclasses
import hashlib
from typing import Any

from rl_tpu.config import schema
from rl_tpu.records import records
from rl_tpu.sampler import types as sampler_types
from rl_tpu.types import termination as term


@dataclasses.dataclass(frozen=True)
class Sample:
  """Asks for a completion; answered with a `sampler.types.Completion`."""

  request: sampler_types.Request
  is_summary: bool


@dataclasses.dataclass(frozen=True)
class Call:
  """Asks for a method of the environment; answered with its result."""

  method: str
  args: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Verify:
  """Asks for the verifier's score of the evidence."""

  evidence: dict[str, Any]


class Fault(Exception):
  """Something that is not the policy's doing failed; ends one rollout."""

  def __init__(self, cause: term.FaultCause, detail: str):
    super().__init__(detail)
    self.cause = cause


Ask = Sample | Call | Verify


@dataclasses.dataclass(frozen=True)
class Settings:
  """What every session of a run shares.

  `rescore_share` of the scored rollouts, chosen by their id, is scored a
  second time from the same evidence (D8).
  """

  budgets: schema.budget_lib.Budget
  compaction: schema.CompactionConfig
  sampling: schema.SamplingConfig
  reward_weights: dict[str, float]
  scores_truncations: bool
  verifier_id: str
  verifier_version: str
  sampler_build: str
  sampler_dtype: str
  rescore_share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Job:
  """One rollout to be run; `seed` is of its sampling alone."""

  rollout_id: str
  task: records.Task
  seed: int
  group_id: str | None = None


def derive_seed(*parts: Any) -> int:
  """A seed in [0, 2^31) that depends on every part and on nothing else."""
  data = '\x1f'.join(str(part) for part in parts).encode()
  digest = hashlib.blake2b(data, digest_size=8).digest()
  return int.from_bytes(digest, 'little') & 0x7FFFFFFF


def share_of(rollout_id: str) -> float:
  """A number in [0, 1) that depends on the id alone."""
  digest = hashlib.blake2b(rollout_id.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little') / 2**64
