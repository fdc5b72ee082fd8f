"""Reads the golden vectors and turns them into records and settings.

The folder is the one named by RL_TPU_GOLDEN_DIR, by default the project's own
copy in tests/golden.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from rl_tpu.config import schema
from rl_tpu.records import hashes
from rl_tpu.records import records
from rl_tpu.types import budget
from rl_tpu.types import termination as term

_OWN = pathlib.Path(__file__).resolve().parent / 'golden'
SCHEMA = 'rl_tpu.golden/2'
# Behaviour log-probability of every action of a golden record: any number.
LOGPROB = -1.5


def cases(name: str) -> list[dict[str, Any]]:
  """The cases of one golden file."""
  folder = pathlib.Path(os.environ.get('RL_TPU_GOLDEN_DIR') or _OWN)
  content = json.loads((folder / f'{name}.json').read_text('utf-8'))
  if content['schema'] != SCHEMA:
    raise ValueError(f'{name}: schema {content["schema"]}, expected {SCHEMA}.')
  return content['cases']


def named(name: str) -> list[tuple[str, dict[str, Any]]]:
  """(id, case) pairs, for parameterized tests."""
  return [(case['id'], case) for case in cases(name)]


def assert_close(
    actual: Any, expected: Any, *, num_actions: int = 0, name: str = ''
) -> None:
  """G32: rtol 1e-5, atol 1e-5 max(1, N/1e5) max(1, max |x|)."""
  expected = np.asarray(expected, np.float64)
  largest = np.max(np.abs(expected), initial=0.0)
  atol = 1e-5 * max(1.0, num_actions / 1e5) * max(1.0, largest)
  np.testing.assert_allclose(
      np.asarray(actual, np.float64),
      expected,
      rtol=1e-5,
      atol=atol,
      err_msg=name,
  )


def decay(lam: dict[str, Any]) -> schema.LambdaConfig:
  """A lambda of the files (G11)."""
  if lam['kind'] == 'fixed':
    return schema.LambdaConfig(fixed=lam['value'])
  return schema.LambdaConfig(length_adaptive=lam['alpha'])


def gae_config(config: dict[str, Any], cut: str | None = None):
  """The settings of the recursion."""
  return schema.GaeConfig(
      gamma=config['gamma'],
      time_unit=config['time_unit'],
      lambda_policy=decay(config['lambda_policy']),
      lambda_critic=decay(config['lambda_critic']),
      cut=cut or config['chain'],
  )


def rules(config: dict[str, Any]) -> term.TerminationRules:
  """The settings of the termination table."""
  return term.TerminationRules(**config['termination'])


def rollout(golden: dict[str, Any]) -> records.Rollout:
  """One rollout as a record; components and references are made up."""
  rollout_id = golden['rollout_id']
  places = [
      (segment['segment_index'], position, value)
      for segment in golden['segments']
      for position, value in enumerate(segment['reward'])
      if value
  ]
  cause = golden['abort_cause']
  fault = golden['termination'] == 'infra_failure'
  return records.Rollout(
      rollout_id=rollout_id,
      task_id=golden['task_id'],
      source=golden['source'],
      task_family=golden['source'],
      group_id=golden['group_id'],
      termination=term.Termination(golden['termination']),
      abort_cause=None if cause is None else term.AbortCause(cause),
      fault_cause=term.FaultCause.SANDBOX if fault else None,
      terminal_reward=golden['terminal_reward'],
      solved=None,
      reward_components={'step': places},
      env_name='golden',
      env_version='1',
      env_seed=0,
      env_snapshot='golden',
      permissions_hash='',
      tool_set_hash='',
      verifier_id='golden',
      verifier_version='1',
      verifier_input_hash='',
      budgets=budget.Budget(**golden['budgets']),
      num_segments=golden['num_segments'],
      segments=_linked([
          _segment(rollout_id, golden['termination'], segment)
          for segment in golden['segments']
      ]),
  )


def _linked(segments: list[records.Segment]) -> tuple[records.Segment, ...]:
  """The segments, a summary that the policy wrote placed in the next one."""
  by_index = {s.segment_index: s for s in segments}
  found = []
  for segment in segments:
    earlier = by_index.get(segment.segment_index - 1)
    if earlier is not None and earlier.cut_cause == 'policy_summary':
      segment = dataclasses.replace(
          segment,
          summary_author='policy',
          summary_hash=hashes.token_hash(hashes.summary_ids(earlier)),
      )
    found.append(segment)
  return tuple(found)


def _segment(
    rollout_id: str, termination: str, golden: dict[str, Any]
) -> records.Segment:
  role = np.asarray(list(golden['role']), 'U1')
  action = np.isin(role, ('A', 'S'))
  index = golden['segment_index']
  ref = lambda k: f'golden#{rollout_id}/{k}'
  context = int(np.argmax(action)) if action.any() else len(role)
  token = np.arange(len(role), dtype=np.int32) + 1
  cause = None
  if golden['cut'] == 'compaction_cut':
    cause = 'policy_summary' if 'S' in golden['role'] else 'template'
  return records.Segment(
      rollout_id=rollout_id,
      segment_index=index,
      global_token_offset=golden['global_token_offset'],
      action_offset=golden['action_offset'],
      turn_offset=golden['turn_offset'],
      end_kind=golden['cut'] or termination,
      prev_state_ref=ref(index) if index else None,
      next_state_ref=ref(index + 1) if golden['cut'] else None,
      summary_hash=None,
      summary_author=None,
      context_length=context,
      context_hash=hashes.token_hash(token[:context]),
      token=token,
      role=role,
      turn_id=np.asarray(golden['turn_id'], np.int32),
      token_type=np.zeros(len(role), np.int32),
      reward=np.asarray(golden['reward'], np.float64),
      behaviour_logprob=np.where(action, LOGPROB, 0.0).astype(np.float32),
      behaviour_version=np.where(action, golden['policy_version'], -1).astype(
          np.int32
      ),
      cut_cause=cause,
  )
