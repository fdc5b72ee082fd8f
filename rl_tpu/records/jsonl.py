"""Rollouts on disk: one JSON object a line, lossless (R8).

Numbers are written as the shortest decimal that reads back to the same float.
Roles are one string a segment; turn ids, token types and policy versions are
run-length coded as `[value, count]` pairs.
"""

import dataclasses
import enum
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.types import budget as budget_lib
from rl_tpu.types import support as support_lib
from rl_tpu.types import termination as term

_ENUMS = {
    'termination': term.Termination,
    'abort_cause': term.AbortCause,
    'fault_cause': term.FaultCause,
    'discard_reason': term.DiscardReason,
}
_BROKEN = (term.DiscardReason.BROKEN_CHAIN, term.DiscardReason.MALFORMED)
_RUNS = ('turn_id', 'token_type', 'behaviour_version')
_DTYPES = {
    'token': np.int32,
    'turn_id': np.int32,
    'token_type': np.int32,
    'reward': np.float64,
    'behaviour_logprob': np.float32,
    'behaviour_version': np.int32,
}


def rollouts_path(workdir: str | os.PathLike[str], step: int) -> pathlib.Path:
  """File of the rollouts that update `step` consumed or discarded."""
  return pathlib.Path(workdir) / 'rollouts' / f'{step:06d}.jsonl'


def estimates_path(workdir: str | os.PathLike[str], step: int) -> pathlib.Path:
  """File of the advantages, values and masks beside `rollouts_path`."""
  return pathlib.Path(workdir) / 'rollouts' / f'estimates-{step:06d}.jsonl'


def steps(workdir: str | os.PathLike[str]) -> list[int]:
  """Steps whose rollouts are stored, ascending."""
  folder = pathlib.Path(workdir) / 'rollouts'
  stems = (path.stem for path in folder.glob('*.jsonl'))
  return sorted(int(stem) for stem in stems if stem.isdigit())


def discard_after(workdir: str | os.PathLike[str], step: int) -> None:
  """Removes files of later steps: a resumed run writes its own."""
  for later in steps(workdir):
    if later > step:
      rollouts_path(workdir, later).unlink()
      estimates_path(workdir, later).unlink(missing_ok=True)


def write(
    path: str | os.PathLike[str], rollouts: Iterable[records.Rollout]
) -> None:
  """Writes rollouts; the file appears whole or not at all.

  Raises:
    ValueError: a number that is not finite, or an array that its on-disk type
      cannot hold; rollout and field are named, and no file is written.
  """
  _write_text(path, (_dump(encode(rollout)) for rollout in rollouts))


def _dump(data: Mapping[str, Any]) -> str:
  # Not json.dump: that one encodes in Python, ten times slower.
  try:
    return json.dumps(data, allow_nan=False, separators=(',', ':'))
  except ValueError:
    _refuse_nonfinite(data, data.get('rollout_id', ''), '')
    raise


def read(path: str | os.PathLike[str]) -> Iterator[records.Rollout]:
  """Reads what `write` wrote.

  Raises:
    ValueError: a line that is no rollout of a known schema, or whose hashes
      are not those of what it holds; file and line are named.
  """
  for number, data in read_lines(path):
    try:
      rollout = decode(data)
      problem = hashes.problem(rollout)
      # What was refused for it says so, and may be looked at.
      if problem and rollout.discard_reason not in _BROKEN:
        raise ValueError(f'{rollout.rollout_id}: {problem}.')
    except ValueError as error:
      raise ValueError(f'{path}:{number}: {error}') from error
    yield rollout


def write_lines(
    path: str | os.PathLike[str], lines: Iterable[Mapping[str, Any]]
) -> None:
  """Writes JSON objects, one a line; the file appears whole or not at all."""
  _write_text(path, (_dump(line) for line in lines))


def _write_text(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(path.name + '.partial')
  try:
    with partial.open('w', encoding='utf-8') as file:
      for line in lines:
        file.write(line + '\n')
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def read_lines(
    path: str | os.PathLike[str],
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Line numbers, from 1, and the JSON objects on them.

  Raises:
    ValueError: a line that is no JSON object; file and line are named.
  """
  with pathlib.Path(path).open('rb') as file:
    for number, line in enumerate(file, start=1):
      if not line.strip():
        continue
      try:
        # Bytes: a line that is no text is named, too.
        data = json.loads(line, parse_constant=_refuse_constant)
      except ValueError as error:
        raise ValueError(f'{path}:{number}: not JSON: {error}') from error
      if not isinstance(data, dict):
        raise ValueError(f'{path}:{number}: not a JSON object.')
      yield number, data


def _refuse_constant(name: str) -> Any:
  raise ValueError(f'{name} is not a number.')


def encode(rollout: records.Rollout) -> dict[str, Any]:
  """A rollout as JSON values.

  Raises:
    ValueError: as `write`.
  """
  data = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout)}
  for name in _ENUMS:
    value = data[name]
    data[name] = value.value if isinstance(value, enum.Enum) else value
  data['budgets'] = dataclasses.asdict(rollout.budgets)
  data['state_ids'] = {str(k): v for k, v in rollout.state_ids.items()}
  data['safety_events'] = [list(e) for e in rollout.safety_events]
  data['reward_components'] = {
      name: [[int(s), int(p), float(v)] for s, p, v in entries]
      for name, entries in rollout.reward_components.items()
  }
  data['segments'] = [_encode_segment(s) for s in rollout.segments]
  return data


def _encode_segment(segment: records.Segment) -> dict[str, Any]:
  data = {f.name: getattr(segment, f.name) for f in dataclasses.fields(segment)}
  if isinstance(segment.end_kind, enum.Enum):
    data['end_kind'] = segment.end_kind.value
  length = len(segment.token)
  for name, dtype in _DTYPES.items():
    array = np.asarray(data[name])
    stored = array.astype(dtype)
    if array.shape != (length,) or not np.array_equal(
        array, stored, equal_nan=array.dtype.kind == 'f'
    ):
      raise ValueError(
          f'{segment.rollout_id} segment {segment.segment_index}: {name} must'
          f' be {np.dtype(dtype).name} [{length}], got {array.dtype.name}'
          f' {list(array.shape)}.'
      )
    data[name] = _runs(stored) if name in _RUNS else _numbers(stored)
  data['role'] = ''.join(segment.role.tolist())
  if len(data['role']) != length or set(data['role']) - set(records.ROLES):
    raise ValueError(
        f'{segment.rollout_id} segment {segment.segment_index}: role must be'
        f' {length} letters of {"".join(records.ROLES)}.'
    )
  sampling = segment.sampling
  data['sampling'] = None if sampling is None else dataclasses.asdict(sampling)
  data['support'] = _encode_support(segment)
  return data


def _encode_support(segment: records.Segment) -> dict[str, Any] | None:
  support = segment.support
  if support is None:
    return None
  count = np.asarray(support.count)
  if count.shape != segment.token.shape or np.maximum(count, 0).sum() != len(
      support.ids
  ):
    raise ValueError(
        f'{segment.rollout_id} segment {segment.segment_index}: support has'
        f' {list(count.shape)} counts for {len(segment.token)} tokens, or'
        f' {len(support.ids)} ids for counts that add up to'
        f' {np.maximum(count, 0).sum()}.'
    )
  return {'count': _runs(count), 'ids': support.ids.tolist()}


def _numbers(array: np.ndarray) -> list[Any]:
  if array.dtype == np.float32:
    return [float(text) for text in array.astype(str)]
  return array.tolist()


def _runs(array: np.ndarray) -> list[list[int]]:
  starts = np.flatnonzero(np.diff(array, prepend=array[:1] - 1))
  counts = np.diff(starts, append=len(array))
  return [[int(array[s]), int(c)] for s, c in zip(starts, counts)]


def _refuse_nonfinite(value: Any, rollout_id: str, path: str) -> None:
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(
        f'{rollout_id}: {path} is {value}; a record holds finite numbers only.'
        ' A reward that is not finite is a fault of its writer.'
    )
  if isinstance(value, Mapping):
    for name, inner in value.items():
      _refuse_nonfinite(inner, rollout_id, f'{path}.{name}'.lstrip('.'))
  elif isinstance(value, (list, tuple)):
    for index, inner in enumerate(value):
      _refuse_nonfinite(inner, rollout_id, f'{path}[{index}]')


def decode(data: Mapping[str, Any]) -> records.Rollout:
  """The inverse of `encode`.

  Raises:
    ValueError: an unknown schema_version, or a field too many or too few.
  """
  version = data.get('schema_version')
  if version == 2:
    data, version = _from_version_2(data), records.SCHEMA_VERSION
  if version != records.SCHEMA_VERSION:
    raise ValueError(
        f'schema_version={version!r}: this program reads version'
        f' {records.SCHEMA_VERSION}; use the one that wrote the file.'
    )
  values = dict(_exact_fields(data, records.Rollout))
  for name, kind in _ENUMS.items():
    values[name] = None if values[name] is None else kind(values[name])
  values['budgets'] = budget_lib.Budget(
      **_exact_fields(values['budgets'], budget_lib.Budget)
  )
  values['state_ids'] = {int(k): v for k, v in values['state_ids'].items()}
  values['safety_events'] = tuple(tuple(e) for e in values['safety_events'])
  values['reward_components'] = {
      name: [tuple(entry) for entry in entries]
      for name, entries in values['reward_components'].items()
  }
  values['segments'] = tuple(_decode_segment(s) for s in values['segments'])
  return records.Rollout(**values)


def _from_version_2(data: Mapping[str, Any]) -> dict[str, Any]:
  """A record from before causes of cuts, tracebacks and seconds were told."""
  cut = term.Cut.COMPACTION.value
  unknown = {cut: term.CutCause.UNKNOWN.value}
  segments = [
      {**s, 'cut_cause': unknown.get(s.get('end_kind'))}
      for s in data.get('segments', ())
  ]
  added = {
      'fault_trace': None,
      'seconds': {},
      'score_components': {},
      'segments': segments,
  }
  return {**data, **added, 'schema_version': records.SCHEMA_VERSION}


def _decode_segment(data: Mapping[str, Any]) -> records.Segment:
  values = dict(_exact_fields(data, records.Segment))
  for name, dtype in _DTYPES.items():
    numbers = values[name]
    if name in _RUNS:
      numbers = [v for v, count in numbers for _ in range(count)]
    values[name] = np.asarray(numbers, dtype)
  values['role'] = np.array(list(values['role']), '<U1')
  lengths = {len(values[name]) for name in (*_DTYPES, 'role')}
  if len(lengths) != 1:
    raise ValueError(
        f'segment {values["segment_index"]} of {values["rollout_id"]} has'
        f' columns of {sorted(lengths)} entries.'
    )
  if values['sampling'] is not None:
    sampling = dict(_exact_fields(values['sampling'], records.Sampling))
    sampling['stop_ids'] = tuple(sampling['stop_ids'])
    values['sampling'] = records.Sampling(**sampling)
  if values['support'] is not None:
    runs, ids = values['support']['count'], values['support']['ids']
    values['support'] = support_lib.Support(
        np.asarray([v for v, n in runs for _ in range(n)], np.int32),
        np.asarray(ids, np.int32),
    )
  return records.Segment(**values)


def _exact_fields(data: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
  names = {f.name for f in dataclasses.fields(kind)}
  if missing := sorted(names - set(data)):
    raise ValueError(f'a {kind.__name__} without {missing[0]}.')
  if surplus := sorted(set(data) - names):
    raise ValueError(f'a {kind.__name__} has no field {surplus[0]}.')
  return data
