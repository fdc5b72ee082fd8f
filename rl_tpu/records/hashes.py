"""Hashes and references of a record, and whether they are true (R2, R6)."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_tpu.records import records
from rl_tpu.types import termination as term
from rl_tpu.types import token_types

_SUMMARY_CAUSES = {
    'policy': term.CutCause.POLICY_SUMMARY.value,
    'runtime': term.CutCause.RUNTIME_SUMMARY.value,
    'other_model': term.CutCause.RUNTIME_SUMMARY.value,
}
_UNKNOWN = term.CutCause.UNKNOWN.value


def token_hash(ids: np.ndarray) -> str:
  """Short hash of token ids, for the hashes of R2."""
  data = np.ascontiguousarray(ids, np.int32).tobytes()
  return hashlib.blake2b(data, digest_size=8).hexdigest()


def json_hash(value: Any) -> str:
  """Short hash of a value as canonical JSON: names sorted, no spaces.

  Args:
    value: what JSON has no form for goes in as its text.
  """
  plain = json.loads(json.dumps(value, default=str))
  text = json.dumps(plain, sort_keys=True, separators=(',', ':'))
  return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def state_ref(lineage: str, rollout_id: str, index: int) -> str:
  """Id of the state that segment `index` of a rollout begins in (R2)."""
  return f'{lineage}#{rollout_id}/{index}'


def summary_ids(segment: records.Segment) -> np.ndarray:
  """The summary that the policy wrote at the end of a segment.

  Args:
    segment: may hold none.

  Returns:
    Ids as sampled, without the stop token; empty where there is none.
  """
  written = np.flatnonzero(segment.role == records.SUMMARY)
  if not written.size:
    return segment.token[:0]
  last = segment.turn_id == segment.turn_id[written[-1]]
  stop = segment.token_type == token_types.STOP
  return segment.token[last & ~stop]


def problem(rollout: records.Rollout) -> str | None:
  """What a hash or reference of the record says that is not so.

  Args:
    rollout: the record; segments may be missing or in any order.

  Returns:
    One line; None where all that the record itself can tell is true.
  """
  segments = sorted(rollout.segments, key=lambda s: s.segment_index)
  for segment in segments:
    found = _context_problem(segment) or _lineage_problem(rollout, segment)
    if found is not None:
      return f'segment {segment.segment_index}: {found} (R6)'
  return _summary_problem(segments)


def _context_problem(segment: records.Segment) -> str | None:
  length = segment.context_length
  if not 0 <= length <= len(segment) or segment.is_action[:length].any():
    return f'its context of {length} tokens holds an action or is too long'
  if segment.context_hash != token_hash(segment.token[:length]):
    return (
        f'context_hash {segment.context_hash!r} is not that of its first'
        f' {length} tokens'
    )
  return None


def _lineage_problem(
    rollout: records.Rollout, segment: records.Segment
) -> str | None:
  index = segment.segment_index
  for name, place in (('prev_state_ref', index), ('next_state_ref', index + 1)):
    ref = getattr(segment, name)
    own = state_ref(rollout.env_snapshot, rollout.rollout_id, place)
    if ref not in (None, own):
      return f'{name} {ref!r} is of another lineage than {own!r}'
  return None


def _summary_problem(segments: Sequence[records.Segment]) -> str | None:
  for segment in segments:
    if (segment.summary_hash is None) != (segment.summary_author is None):
      return f'segment {segment.segment_index} has half a summary'
  if segments and not segments[0].segment_index and segments[0].summary_hash:
    return 'the first segment has a summary of nothing'
  for earlier, later in zip(segments, segments[1:]):
    cause, author = earlier.cut_cause, later.summary_author
    # Files from before causes were told have other hashes of summaries.
    if cause == _UNKNOWN:
      continue
    if cause in _SUMMARY_CAUSES.values() or author is not None:
      if cause != _SUMMARY_CAUSES.get(author):
        return (
            f'segment {later.segment_index} has a summary of {author}, after a'
            f' cut by {cause}'
        )
    if author == 'policy' and later.summary_hash != token_hash(
        summary_ids(earlier)
    ):
      return (
          f'segment {later.segment_index}: summary_hash'
          f' {later.summary_hash!r} is not that of the summary before it (R6)'
      )
  return None
