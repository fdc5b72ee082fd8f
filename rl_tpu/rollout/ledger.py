"""Where every started rollout is: started = admitted + discarded + queued
+ running (A5)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rl_tpu.records import records
from rl_tpu.rollout import admission as admission_lib
from rl_tpu.types import termination as term


@dataclasses.dataclass
class Ledger:
  """Counts of a whole run; kept with the checkpoint.

  Attributes:
    started: rollouts begun.
    admitted: rollouts that trained the actor.
    discarded: the others, by reason.
    queued: ended, and not judged yet.
    running: not ended.
    discarded_by_kind: discards by reason and kind of end.
    judged_by: judged rollouts by source, length and age, as `source/NAME`.
    discarded_by: the discards among them.
  """

  started: int = 0
  admitted: int = 0
  discarded: dict[str, int] = dataclasses.field(default_factory=dict)
  queued: int = 0
  running: int = 0
  discarded_by_kind: dict[str, int] = dataclasses.field(default_factory=dict)
  judged_by: dict[str, int] = dataclasses.field(default_factory=dict)
  discarded_by: dict[str, int] = dataclasses.field(default_factory=dict)

  def start(self, count: int) -> None:
    """Counts rollouts that begin."""
    self.started += count
    self.running += count

  def end(self, count: int) -> None:
    """Counts rollouts that ended and wait to be judged."""
    self.running -= count
    self.queued += count

  def record(
      self, admission: admission_lib.Admission, *, version: int | None = None
  ) -> None:
    """Counts a judged batch; its rollouts were queued, or still running.

    Args:
      admission: the batch.
      version: that is trained, for the ages; None counts none.
    """
    for rollout, _ in admission.judged:
      _count(self.judged_by, _places(rollout, version))
    for discard in admission.discards:
      places = _places(discard.rollout, version)
      _count(self.judged_by, places)
      _count(self.discarded_by, places)
    discards = admission.discards
    judged = len(admission.judged) + len(discards)
    from_queue = min(judged, self.queued)
    self.queued -= from_queue
    self.running -= judged - from_queue
    self.admitted += len(admission.judged)
    for discard in discards:
      reason = discard.reason.value
      kind = f'{reason}/{discard.rollout.termination.value}'
      self.discarded[reason] = self.discarded.get(reason, 0) + 1
      self.discarded_by_kind[kind] = self.discarded_by_kind.get(kind, 0) + 1

  def assert_balanced(self) -> None:
    """Checks A5.

    Raises:
      RuntimeError: rollouts were lost or counted twice.
    """
    placed = (
        self.admitted + self.num_discarded + self.queued + self.running
    )
    if placed != self.started or min(self.queued, self.running) < 0:
      raise RuntimeError(
          f'rollouts do not add up: {self.started} started, {self.admitted}'
          f' admitted, {self.num_discarded} discarded, {self.queued} queued,'
          f' {self.running} running.'
      )

  @property
  def num_discarded(self) -> int:
    """Discards over all reasons."""
    return sum(self.discarded.values())

  def figures(self) -> dict[str, float]:
    """The counts, for the log."""
    return {
        'rollout/started': float(self.started),
        'rollout/admitted': float(self.admitted),
        'rollout/discarded': float(self.num_discarded),
        'rollout/queued': float(self.queued),
        'rollout/running': float(self.running),
        **{
            f'rollout/discard_share/{reason}': share
            for reason, share in self.shares().items()
            if share
        },
        **{
            f'rollout/discard_{place}': count / self.judged_by[place]
            for place, count in self.discarded_by.items()
        },
    }

  def shares(self) -> dict[str, float]:
    """Share of the started rollouts that each reason took (A5)."""
    return {
        reason.value: self.discarded.get(reason.value, 0)
        / max(self.started, 1)
        for reason in term.DiscardReason
    }

  def state(self) -> dict[str, Any]:
    """JSON form for the checkpoint."""
    return dataclasses.asdict(self)

  @classmethod
  def from_state(cls, state: dict[str, Any]) -> 'Ledger':
    """The ledger that `state` was taken from."""
    return cls(**state)


def _places(rollout: records.Rollout, version: int | None) -> list[str]:
  """What a rollout is counted under: its source, length and age."""
  places = [
      f'source/{rollout.source}',
      f'length/{_power(rollout.num_tokens)}',
  ]
  drawn = [s.behaviour_version[s.is_action] for s in rollout.segments]
  oldest = min((int(v.min()) for v in drawn if v.size), default=None)
  if version is not None and oldest is not None:
    places.append(f'age/{_power(version - oldest)}')
  return places


def _power(number: int) -> int:
  """The largest power of two that is not above; 0 below one."""
  return 1 << (number.bit_length() - 1) if number > 0 else 0


def _count(counts: dict[str, int], places: Sequence[str]) -> None:
  for place in places:
    counts[place] = counts.get(place, 0) + 1


@dataclasses.dataclass
class Anchors:
  """Tasks whose targets no outcome has tied down for long (T12).

  Attributes:
    unscored: rollouts in a row without a score in use, by task.
  """

  unscored: dict[str, int] = dataclasses.field(default_factory=dict)

  def record(
      self, admission: admission_lib.Admission, *, max_unscored: int
  ) -> list[str]:
    """Counts a judged batch; returns the tasks that have just reached it.

    Args:
      admission: the batch.
      max_unscored: termination.max_unscored.
    """
    reached = []
    for rollout, verdict in admission.judged:
      task = rollout.task_id
      if verdict.end_mode == term.EndMode.TERMINAL:
        self.unscored.pop(task, None)
        continue
      self.unscored[task] = self.unscored.get(task, 0) + 1
      if self.unscored[task] == max_unscored:
        reached.append(task)
    return reached
