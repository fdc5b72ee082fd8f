"""Compares an outcome with everything that a golden file expects of it."""

from typing import Any

import numpy as np

from rl_tpu.advantages import normalise
from rl_tpu.config import schema
from tests import batch_cases
from tests import golden_case
from tests import golden_io


def check(outcome: batch_cases.Outcome, expected: dict[str, Any]) -> None:
  """Compares everything that the file expects of a batch."""
  _check_verdicts(outcome, expected)
  in_batch = {r.rollout_id: i for i, r in enumerate(outcome.batch.rollouts)}
  for name, array in golden_case.columns(outcome).items():
    unpacked = outcome.by_rollout(array)
    want = [
        np.asarray(segment[name], np.float64)
        for rollout in expected['rollouts']
        for segment in rollout['segments']
    ]
    got = []
    for rollout in expected['rollouts']:
      here = unpacked.get(rollout['rollout_id'])
      for index, segment in enumerate(rollout['segments']):
        # A rollout in neither batch is not packed: it reads as 0 (G12).
        zeros = np.zeros(len(segment[name]))
        got.append(zeros if here is None else here[index])
    golden_io.assert_close(
        np.concatenate(got) if got else [],
        np.concatenate(want) if want else [],
        name=name,
    )
  joins = outcome.batch.segments.joins
  padding = outcome.batch.time_BT < 0
  for array in golden_case.columns(outcome).values():
    np.testing.assert_array_equal(array[padding], 0)
  assert joins.policy_mask_BT.sum() == expected['policy_tokens']
  assert joins.critic_mask_BT.sum() == expected['critic_tokens']
  for rollout in expected['rollouts']:
    place = in_batch.get(rollout['rollout_id'])
    if place is not None:
      dropped = outcome.batch.dropped_reward_R[place]
      golden_io.assert_close(dropped, rollout['dropped_reward'])


def _check_verdicts(outcome: batch_cases.Outcome, expected: Any) -> None:
  admitted = {a.rollout.rollout_id: a for a in outcome.admission.admitted}
  reasons = {
      d.rollout.rollout_id: d.reason.value for d in outcome.admission.discards
  }
  for rollout in expected['rollouts']:
    rollout_id = rollout['rollout_id']
    entry = admitted.get(rollout_id)
    verdict = entry.verdict if entry else None
    assert rollout['in_policy_batch'] == bool(
        verdict and verdict.in_policy_batch
    ), rollout_id
    assert rollout['in_critic_batch'] == bool(
        verdict and verdict.in_critic_batch
    ), rollout_id
    assert rollout['reason'] == reasons.get(rollout_id), rollout_id
    if entry:
      assert rollout['end_mode'] == verdict.end_mode.value, rollout_id
  counts = {
      reason.value: count
      for reason, count in outcome.admission.discard_counts.items()
  }
  assert counts == expected['discard_counts']


def check_lambdas(
    outcome: batch_cases.Outcome, golden: dict[str, Any], name: str
) -> None:
  """N of G11: lambda = max(0, 1 - 1 / (alpha N))."""
  lam = golden['config'][name]
  decays_R = outcome.batch.segments.joins.decays_R.astype(np.float64)
  want = {
      r['rollout_id']: r[name] for r in golden['expected']['rollouts']
  }
  for place, rollout in enumerate(outcome.batch.rollouts):
    got = lam.get('value')
    if lam['kind'] == 'length_adaptive':
      got = max(0.0, 1.0 - 1.0 / (lam['alpha'] * decays_R[place]))
    golden_io.assert_close(got, want[rollout.rollout_id], name=name)


def check_normalised(
    outcome: batch_cases.Outcome, golden: dict[str, Any]
) -> None:
  """G17 on the estimates of the case, under every norm."""
  settings = golden['config']['advantage_norm']
  running = {
      name: normalise.Statistics(
          count=found['count'],
          mean=found['mean'],
          squared_deviation=found['count'] * found['std'] ** 2,
      )
      for name, found in settings['running'].items()
  }
  for norm, expected in golden['expected']['normalised_advantage'].items():
    advantage_BT, _ = normalise.normalise(
        outcome.estimates.advantage_BT,
        outcome.batch.segments.joins,
        config=schema.AdvantageConfig(
            norm=norm,
            eps=settings['eps'],
            std_floor=settings['std_floor'],
            min_count=settings['min_count'],
        ),
        sources=outcome.batch.sources,
        running=running,
    )
    unpacked = outcome.by_rollout(advantage_BT)
    got, want = [], []
    for rollout, segments in zip(golden['rollouts'], expected):
      here = unpacked.get(rollout['rollout_id'])
      for index, segment in enumerate(segments):
        want.append(segment)
        got.append(np.zeros(len(segment)) if here is None else here[index])
    golden_io.assert_close(
        np.concatenate(got) if got else [],
        np.concatenate(want) if want else [],
        name=norm,
    )


def check_all(outcome: batch_cases.Outcome, golden: dict[str, Any]) -> None:
  """Everything that a file of whole cases expects."""
  check(outcome, golden['expected'])
  check_lambdas(outcome, golden, 'lambda_policy')
  check_lambdas(outcome, golden, 'lambda_critic')
  check_normalised(outcome, golden)
